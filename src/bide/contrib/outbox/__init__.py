"""The rules of a transactional outbox, without a database library.

    rows.py     a change as a row: what is written in the user's transaction
    sending.py  what becomes of each row: sent, sent later, or refused for good
    relay.py    the loop that sends the rows that were left

`bide.contrib.sqlalchemy` keeps the rows in a database. docs/decisions/0019-outbox.md explains the
rules.
"""
