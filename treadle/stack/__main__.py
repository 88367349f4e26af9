"""``python -m treadle.stack``: the supervisor alone, without a terminal. ``treadle up --detach`` starts it."""

import os
import sys

from shared.runtime.stack_state import StackError
from treadle.stack.operate import run_stack

if __name__ == "__main__":
    try:
        sys.exit(run_stack(os.environ, None))
    except StackError as error:
        sys.exit(f"treadle: {error}")
