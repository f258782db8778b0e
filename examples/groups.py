"""Accounts whose bookings run one at a time, in order, though workers run many jobs at once.

Two accounts have three bookings each, of which the second is slow; and a report that belongs to
neither. A booking of one account never overtakes another of it. It prints:

    ann: +100 → 100
    ann: -30 → 70
    ann: -70 → 0
    bob: +5 → 5
    bob: +5 → 10
    bob: -10 → 0
    no account was ever below zero
"""

import asyncio

import bide

queue = bide.Queue("bank")
balances = {"ann": 0, "bob": 0}  # of the one worker process that the runner starts
BOOKINGS = {"ann": [100, -30, -70], "bob": [5, 5, -10]}


@queue.task
async def book(account: str, amount: int, seconds: float) -> str:
    before = balances[account]
    await asyncio.sleep(seconds)  # whoever began meanwhile would see the old balance
    balances[account] = before + amount
    return f"{account}: {amount:+} → {balances[account]}"


@queue.task
async def lowest() -> int:
    return min(balances.values())


def main() -> None:
    jobs = [
        book.options(group=account).enqueue(account, amount, 0.2 if i == 1 else 0.0)
        for account, amounts in BOOKINGS.items()
        for i, amount in enumerate(amounts)
    ]
    for job in jobs:
        print(job.wait())
    if lowest.enqueue().wait() >= 0:
        print("no account was ever below zero")
