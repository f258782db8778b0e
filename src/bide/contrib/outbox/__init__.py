"""The rules of a transactional outbox, without a database library.

    rows.py     a change as a row, and what `once` stores: written in the user's transaction
    sending.py  what becomes of each row, and the relay that sends the rows that were left

`bide.contrib.sqlalchemy` and `bide.contrib.django.outbox` keep the rows in a database.
docs/decisions/0019-outbox.md explains the rules.
"""
