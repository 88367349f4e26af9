"""``python -m shared.stack``: the supervisor alone, without a terminal; ``treadle up --detach`` starts it."""

import os
import sys

from shared.stack.errors import StackError
from shared.stack.operate import run_stack

if __name__ == "__main__":
    try:
        sys.exit(run_stack(os.environ, None))
    except StackError as error:
        sys.exit(f"treadle: {error}")
