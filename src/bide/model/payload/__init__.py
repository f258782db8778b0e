"""How values travel: from a caller's arguments to bytes, and back to what a function expects.

`body` is what is stored of a job; `serializers` turn values into bytes; `signature` holds what a
function takes, checks a call where it is made and converts it where it is run; `convert` makes a
plain value what an annotation says.
"""
