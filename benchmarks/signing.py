"""What a signature costs: `python -m benchmarks.signing`.

Time in the producer and in the worker, best of several rounds, and bytes on the server, for bodies
of several sizes.
"""

from __future__ import annotations

import timeit

from bide.model.payload.body import Body, decode_envelope, encode_body
from bide.model.payload.signing import Keyring, Seal
from bide.protocol.keys import keys_of

SIZES = (35, 1_000, 100_000)
ROUNDS = 7
AT_LEAST = 0.1
"""Seconds a round."""


def micros(statement: str, **names: object) -> float:
    """Microseconds a call of the best round."""
    timer = timeit.Timer(statement, globals=names)
    count = 1
    while timer.timeit(count) < AT_LEAST:
        count *= 2
    return min(timer.repeat(ROUNDS, count)) / count * 1e6


def main() -> None:
    seal = Seal(Keyring(f"2026a:{'5f0c1e' * 8}"), keys_of("mail"))
    print("| body | to encode, µs | to sign, µs | to check, µs | to decode, µs | bytes more |")
    print("|---|---|---|---|---|---|")
    for size in SIZES:
        body = Body("app.tasks:send", ["x" * (size - 37)])
        data = encode_body(body)
        signed = seal.sign("job", "cr65j0g3x7wqk1b8zq0v", data)
        told = [
            micros("encode_body(body)", encode_body=encode_body, body=body),
            micros("seal.sign('job', 'cr65j0g3x7wqk1b8zq0v', data)", seal=seal, data=data),
            micros("seal.check('job', 'cr65j0g3x7wqk1b8zq0v', data)", seal=seal, data=signed),
            micros("decode_envelope(data)", decode_envelope=decode_envelope, data=signed),
        ]
        cells = [f"{len(data):,} B", *(f"{one:.2f}" for one in told), len(signed) - len(data)]
        print(f"| {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    main()
