"""Makes what nearly every run of the tests needs and keeps in `build/test-cache`: the environments of PyTorch
and of most jobs. `tests/run.sh` calls it in the first run of a checkout, before the tests begin."""

from tests import torch_runtime
from tests.e2e.running import SKLEARN


def main() -> None:
    torch_runtime.torch_python()
    torch_runtime.service_python(SKLEARN)


if __name__ == "__main__":
    main()
