"""A consumer process: `python -m tests.chaos.consume URL HOW`; prints a line per item it has."""

from __future__ import annotations

import sys
import time

from bide import DelayQueue


def main(url: str, how: str) -> None:
    pile = DelayQueue("orders", url=url)
    if how == "hold":  # until it is killed
        with pile.take(num=3, lease="1h", wait=20) as items:
            for item in items:
                print(item.data, flush=True)
            time.sleep(60)
    elif how == "pop":
        while data := pile.pop(num=7):
            for one in data:
                print(one)
    else:
        for item in pile.each(num=5, wait="300ms"):
            print(item.data)
            item.ack()
    pile.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
