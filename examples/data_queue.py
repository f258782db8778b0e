"""Data that come out when they are due: no functions, no workers.

Twenty users are pushed with a delay of three seconds. Before, nothing comes out; then ten, and ten
more. What must not be lost is taken under a lease, and acked when it is dealt with. It prints:

    pushed 20
    within 3 s: []
    3 s later: users 1 to 10
    and: users 11 to 20
    and: []
    mail to user 7: no connection, released
    mail to user 7: sent, at attempt 2
    left: 0
"""

import bide

pile = bide.DelayQueue("users")


def told(users: list[dict[str, int]]) -> str:
    return f"users {users[0]['user']} to {users[-1]['user']}"


def main() -> None:
    pushed = pile.push_many([{"user": n} for n in range(1, 21)], delay=3)
    print("pushed", len(pushed))
    print("within 3 s:", pile.pop(num=10))

    # Looks at what is next without taking it, and waits until it is due.
    with pile.take(wait=10) as items:
        first = items[0]  # released when the block ends, because nobody acks it
        assert first.data == {"user": 1}
    print("3 s later:", told(pile.pop(num=10)))
    print("and:", told(pile.pop(num=10)))
    print("and:", pile.pop(num=10))

    pile.push({"user": 7})
    for item in pile.each(lease="30s", wait="1s"):
        print(f"mail to user {item.data['user']}:", end=" ")
        if item.attempt == 1:
            item.nack(delay="200ms")
            print("no connection, released")
        else:
            item.ack()
            print("sent, at attempt", item.attempt)
    print("left:", len(pile))
    pile.close()
