"""Encodes arguments and results, and converts them to the types that a function expects.

`body`: the stored form of a job. `serializers`: from values to bytes and back. `signature`: checks
a call in the producer, and converts its arguments in the worker. `convert`: converts plain values
to annotated types. `signing`: signatures of stored bytes.
"""
