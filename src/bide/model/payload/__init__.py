"""How values travel: from a caller's arguments to bytes, and back to what a function expects.

`codec` is what is stored of a job; `serializers` turn values into bytes; `signature` holds what a
function takes, checks a call where it is made and converts it where it is run; `conversion`,
`hints` and `records` are how a plain value becomes what an annotation says.
"""
