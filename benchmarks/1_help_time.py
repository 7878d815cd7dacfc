"""Time of `ectype --help`: the lowest of ten processes, which is what an idle machine takes.

python benchmarks/1_help_time.py
"""

import subprocess
import sys
import time

from figures import Figures


def main() -> None:
    seconds = []
    for _ in range(10):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "ectype.cli", "--help"], check=True, capture_output=True)
        seconds.append(time.perf_counter() - began)
    figures = Figures()
    figures.at_most("ectype --help", round(min(seconds), 3), "seconds", 0.4)
    figures.finish()


if __name__ == "__main__":
    main()
