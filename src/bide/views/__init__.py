"""What the page, the JSON API and `bide top` show: functions from a site and what was asked for.

Each returns plain values, as JSON has them: moments in ISO 8601 and UTC, times in seconds. To add a
page is to add a line to the table in `table.py`, and a template of the same name.
"""
