import os

print("PROCESS", os.getpid())
