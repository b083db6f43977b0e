import torch.nn as nn


class SonarDNN(nn.Module):
    def __init__(self, inputs, hidden):
        super(SonarDNN, self).__init__()
        self.net = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.net(x)
