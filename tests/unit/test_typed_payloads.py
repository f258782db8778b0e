"""What a task asks for in its annotations is what it gets, through every codec."""

from __future__ import annotations

import asyncio
import enum
import functools
import os
import re
import subprocess
import sys
import typing
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePath, PurePosixPath
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
)
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bide.errors import PayloadError, UsageError
from bide.model.payload.body import Body, decode_body, encode_body, encode_result
from bide.model.payload.serializers import CODECS, Codec
from bide.model.payload.signature import Signature

if TYPE_CHECKING:
    from nowhere import Unheard  # type: ignore[import-not-found]

ALL_CODECS = pytest.mark.parametrize("codec", CODECS)
TASK = "app.tasks:send"
T = TypeVar("T")
Moment = TypeVar("Moment", bound=datetime)
Choice = TypeVar("Choice", uuid.UUID, int)
UserId = NewType("UserId", int)
NOW = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 9


class Shade(enum.StrEnum):
    DARK = "dark"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Rate(enum.Enum):
    LOW = 0.5
    PAIR = (1, 2)


class Money(NamedTuple):
    amount: Decimal
    currency: str = "EUR"


class Address(TypedDict):
    street: str
    since: NotRequired[date]


@dataclass
class Coded:
    code: typing.ClassVar[str]
    n: int


@dataclass
class Line:
    sku: str
    count: int = 1


@dataclass
class Order:
    id: uuid.UUID
    placed: datetime
    lines: list[Line] = field(default_factory=list)
    note: str | None = None

    def ship(self, fast: bool = False) -> str:
        return f"{self.id} {fast}"

    @classmethod
    def make(cls, count: int) -> Order:
        return cls(ID, NOW, [Line("a", count)])

    @staticmethod
    def cancel(order_id: uuid.UUID) -> None: ...

    @staticmethod
    def find(order) -> None: ...  # type: ignore[no-untyped-def]


@dataclass(frozen=True)
class Tree:
    when: date | datetime
    below: list[Tree] = field(default_factory=list)


@dataclass
class Box(Generic[T]):
    value: T


class Item(msgspec.Struct, rename="camel"):
    long_name: str
    tags: set[str] = set()


class Mixed(msgspec.Struct, rename="camel"):
    some_key: uuid.UUID | datetime
    other: int = 5


@dataclass
class MixedBox(Generic[T]):
    values: list[T]
    other: uuid.UUID | datetime | None = None
    late: int = field(default=1, init=False)


@attrs.define
class Visit:
    at: datetime | uuid.UUID
    until: date | None = attrs.field(default=None, alias="to")
    late: int = attrs.field(default=1, init=False)


class Refund(msgspec.Struct, tag=True):
    on: date | uuid.UUID


class Charge(msgspec.Struct, tag=True):
    on: date | uuid.UUID


class Pair(msgspec.Struct, array_like=True):
    left: int
    right: date | uuid.UUID


class TaggedPair(msgspec.Struct, array_like=True, tag=5):
    left: date | uuid.UUID


class User(pydantic.BaseModel):
    name: str
    born: date
    avatar: Path | None = None
    friends: list[User] = []


class Strict(pydantic.BaseModel, strict=True):
    id: uuid.UUID
    at: datetime
    blob: bytes = b""


class Aliased(pydantic.BaseModel):
    user_id: int = pydantic.Field(alias="userId", gt=0)


@dataclass
class Old:
    a: int
    gone: int


@dataclass
class New:
    a: int
    b: int = 7


class Plain:
    """A type that nobody knows anything of."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain)

    __hash__ = None  # type: ignore[assignment]


class Person(pydantic.BaseModel):
    name: str


class Employee(Person):
    number: int


TWICE = datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Paris"))
"""In an hour that repeats; it equals no time of another zone."""


def late(record: Any) -> Any:
    record.late = 7
    return record


def asking(hint: Any, returns: Any = Any) -> Callable[..., Any]:
    def send(value: Any) -> Any: ...

    send.__annotations__ = {"value": hint, "return": returns}
    return send


def travel(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    codec: Codec = "json",
    owner: type | None = None,
) -> tuple[list[Any], dict[str, Any]]:
    """From a producer to a worker, as bytes."""
    signature = Signature.of(function, owner)
    signature.check(args, kwargs or {}, TASK)
    signature.check_records(args, kwargs or {}, TASK, codec)
    data = encode_body(Body(TASK, args, kwargs or {}, codec=codec), signature.positional)
    body = decode_body(data, allow_pickle=True)
    bound, named = Signature.of(function, owner).bind(body.args, body.kwargs, TASK)
    return list(bound), named


def bound(hint: Any, value: Any) -> Any:
    """What a worker makes of a value that has come as it is."""
    args, _ = Signature.of(asking(hint)).bind([value], {}, TASK)
    return args[0]


def same(left: Any, right: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(left) is not type(right) or left != right:
        return False
    if isinstance(left, dict):
        return all(map(same, left, right)) and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return all(map(same, left, right))
    return True


# -- there and back

THERE_AND_BACK: list[tuple[Any, Any]] = [
    (int, 5),
    (int, 2**63 - 1),
    (float, 1.5),
    (str, "é\n"),
    (bool, True),
    (None, None),
    (bytes, b"\x00\xff\n"),
    (bytearray, bytearray(b"\x00")),
    (datetime, NOW),
    (datetime, NOW.replace(tzinfo=None)),
    (datetime, NOW.astimezone(timezone(timedelta(hours=5, minutes=30)))),
    (date, date(2030, 1, 2)),
    (time, time(3, 4, 5, 678)),
    (timedelta, timedelta(days=-3, microseconds=7)),
    (uuid.UUID, ID),
    (Decimal, Decimal("1.10")),
    (Color, Color.BLUE),
    (Level, Level.HIGH),
    (Shade, Shade.DARK),
    (Right, Right.READ | Right.WRITE),
    (Rate, Rate.LOW),
    (Rate, Rate.PAIR),
    (Path, Path("/a/b")),
    (PurePosixPath, PurePosixPath("a")),
    (list[Path], [Path("a")]),
    (dict[str, Path | None], {"a": Path("b"), "c": None}),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (tuple[int, str], (1, "a")),
    (tuple[uuid.UUID, ...], (ID, ID)),
    (tuple[()], ()),
    (deque[int], deque([1, 2])),
    (list[datetime], [NOW]),
    (Sequence[uuid.UUID], [ID]),
    (Iterable[uuid.UUID], [ID]),
    (dict[int, Decimal], {1: Decimal(2)}),
    (dict[uuid.UUID, date], {ID: NOW.date()}),
    (Mapping[date, int], {NOW.date(): 1}),
    (dict[Color, Level], {Color.RED: Level.LOW}),
    (dict[str, dict[int, list[Decimal]]], {"a": {1: [Decimal("0.1")]}}),
    (Optional[uuid.UUID], ID),  # noqa: UP045 - as older code has it
    (Optional[uuid.UUID], None),  # noqa: UP045
    (uuid.UUID | None, ID),
    (int | str, "5"),
    (int | str, 5),
    (int | list[uuid.UUID] | None, [ID]),
    (Literal["a", "b"], "b"),
    (Literal[1, None], None),
    (Annotated[int, msgspec.Meta(gt=0)], 5),
    (Annotated[uuid.UUID, "a note to others"], ID),
    (Annotated[date | uuid.UUID, "a note to others"], ID),
    (UserId, UserId(5)),
    (list[UserId], [UserId(5)]),
    (Money, Money(Decimal("1.5"))),
    (list[Money], [Money(Decimal("1.5"), "USD")]),
    (Address, {"street": "x", "since": date(2030, 1, 1)}),
    (Line, Line("a", 2)),
    (Order, Order(ID, NOW, [Line("a")], "x")),
    (Order | None, Order(ID, NOW)),
    (dict[str, list[Order]], {"a": [Order(ID, NOW)]}),
    (Item, Item("x", {"a"})),
    (list[Item], [Item("x")]),
    (Box[uuid.UUID], Box(ID)),
    (User, User(name="a", born=NOW.date(), friends=[User(name="b", born=NOW.date())])),
    (User, User(name="a", born=NOW.date(), avatar=Path("x"))),
    (User | None, User(name="a", born=NOW.date())),
    (list[User], [User(name="a", born=NOW.date())]),
    (dict[str, User], {"a": User(name="a", born=NOW.date())}),
    (Strict, Strict(id=ID, at=NOW, blob=b"x")),
    (Aliased, Aliased(userId=7)),
    # what msgspec has no word for
    (datetime | uuid.UUID, NOW),
    (datetime | uuid.UUID, ID),
    (uuid.UUID | datetime | None, None),
    (date | datetime, NOW),
    (date | datetime, NOW.date()),
    (datetime | date, NOW.date()),
    (datetime | date, NOW),
    (Union[uuid.UUID, str], "no id"),  # noqa: UP007 - as older code has it
    (Decimal | timedelta | str, timedelta(1)),
    (list[date | datetime], [NOW, NOW.date()]),
    (set[date | uuid.UUID], {NOW.date(), ID}),
    (tuple[date | uuid.UUID, int], (ID, 1)),
    (tuple[date | uuid.UUID, ...], (ID, NOW.date())),
    (dict[int, date | uuid.UUID], {1: ID}),
    (Mapping[uuid.UUID, date | uuid.UUID], {ID: ID}),
    (list[uuid.UUID | datetime | None] | None, [None, ID, NOW]),
    (Line | Order, Line("a", 5)),
    (Line | Order, Order(ID, NOW)),
    (User | Aliased, Aliased(userId=7)),
    (Aliased | User | None, User(name="a", born=NOW.date())),
    (User | int, 5),
    (User | int, User(name="a", born=NOW.date())),
    (Level | int, 7),
    (Level | int, Level.LOW),
    (Tree, Tree(NOW, [Tree(NOW.date(), [Tree(NOW)])])),
    (list[Tree], [Tree(NOW.date())]),
    (Mixed, Mixed(NOW)),
    (Mixed | None, Mixed(ID, 7)),
    (Visit, late(Visit(NOW, NOW.date()))),
    (list[Visit | None], [Visit(ID), None]),
    (MixedBox[uuid.UUID], late(MixedBox([ID]))),
    (MixedBox[Order], MixedBox([Order(ID, NOW)], NOW)),
    (MixedBox[int] | MixedBox[datetime], MixedBox([NOW])),
    (Refund | Charge, Charge(NOW.date())),
    (Refund | Charge, Refund(ID)),
    (Charge, Charge(ID)),
    (Pair, Pair(1, NOW.date())),
    (TaggedPair | None, TaggedPair(ID)),
    (dict[Path, int], {Path("a"): 1}),
    (list[dict[Path, Path]], [{Path("a"): Path("b")}]),
    (dict[Rate, int], {Rate.LOW: 1}),
    (Moment, NOW),
    (list[Choice], [ID, 5]),  # type: ignore[valid-type]
    # what is also something else in Python
    (int, True),
    (float, True),
    (list[int], [True, 5]),
    (Line, Line("a", True)),
    (int | None, True),
    (date, NOW),
    (list[date], [NOW, NOW.date()]),
    (date | None, NOW),
    # what says nothing
    (Any, [1, "a"]),
    (object, {"a": 1}),
    (T, 5),
    (list[T], [5]),  # type: ignore[valid-type]
    (list, [1]),
    (dict, {"a": 1}),
    (typing.Self, 5),
    ("Unheard", 5),
    ("list[Unheard]", [5]),
    ("not even python", 5),
    (5, 5),
    (Callable[[int], int], 5),
    (type[int], 5),
    (Plain, {"a": 1}),
    (list[Plain], [{"a": 1}]),
    (dict[str, Plain] | None, {"a": 1}),
    (Box[Plain], Box(5)),
]
# Not the value: a set has no order, and processes that share the tests must call them the same.
names = [
    f"{getattr(hint, '__name__', hint)}-{i}"[:60] for i, (hint, _) in enumerate(THERE_AND_BACK)
]


@ALL_CODECS
@pytest.mark.parametrize(("hint", "value"), THERE_AND_BACK, ids=names)
def test_there_and_back(hint: Any, value: Any, codec: Codec) -> None:
    args, _ = travel(asking(hint), [value], codec=codec)
    assert same(args, [value])
    _, kwargs = travel(asking(hint), kwargs={"value": value}, codec=codec)
    assert same(kwargs, {"value": value})


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Plain, Plain()),
        (list[Plain], [Plain()]),
        (Line | Plain, Plain()),
        (list[Color], [Color.RED]),
        (dict[str, tuple[Color, Right]], {"a": (Color.RED, Right.READ | Right.WRITE)}),
        (complex, 1j),
        (tuple[complex, Path], (1j, Path("a"))),
        (Sequence[int], deque([1])),
    ],
)
def test_a_pickle_brings_objects_and_they_pass(hint: Any, value: Any) -> None:
    args, _ = travel(asking(hint), [value], codec="pickle")
    assert args[0] == (value if not isinstance(value, deque) else [1])


class Special(Line):
    pass


class Day(datetime):
    pass


def test_objects_of_a_class_below_pass_too() -> None:
    special, day = Special("a"), Day(2030, 1, 1)
    assert bound(Line, special) is special
    assert bound(list[Line], [special])[0] is special
    assert bound(datetime, day) is day
    assert bound(date, day) is day


class Text(str):
    def __str__(self) -> str:
        return "other"


class Number(int): ...


class Fraction(float): ...


class Holiday(date): ...


class Nanoseconds(datetime):
    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize(
    ("hint", "value", "plain"),
    [
        (str, Text("a"), "a"),
        (Any, [Text("a")], ["a"]),
        (dict[str, int], {Text("a"): Number(5)}, {"a": 5}),
        (float, Fraction(0.5), 0.5),
        (datetime, Day(2030, 1, 2, 3, 4, 5, 6, UTC), datetime(2030, 1, 2, 3, 4, 5, 6, UTC)),
        (date, Holiday(2030, 1, 2), date(2030, 1, 2)),
    ],
)
def test_values_of_a_class_below_a_plain_type_travel(
    hint: Any, value: Any, plain: Any, codec: Codec
) -> None:
    args, _ = travel(asking(hint), [value], codec=codec)
    assert same(args, [plain])


@pytest.mark.parametrize(
    ("value", "codec"),
    [(Nanoseconds(2030, 1, 1), "json"), (Nanoseconds(2030, 1, 1), "msgpack"), ({True: 1}, "json")],
)
def test_a_value_that_its_plain_type_cannot_equal_is_refused(value: Any, codec: Codec) -> None:
    with pytest.raises(PayloadError, match="do not fit"):
        travel(asking(Any), [value], codec=codec)


@dataclass
class Price:
    cents: int

    def __post_init__(self) -> None:
        self.cents *= 100


@dataclass
class Once:
    n: int

    def __post_init__(self) -> None:
        if self.n > 5:
            raise ValueError("too large")


@attrs.define
class Account:
    id: int
    _balance: int = 0


@attrs.define
class Closed:
    _balance: int


@dataclass(eq=False)
class Unequal:
    n: int


@dataclass
class Anything:
    data: Any
    at: datetime | None = None


@dataclass
class Discounted(Line):
    percent: int = 0


def grown(n: int) -> Once:
    once = Once(1)
    once.n = n
    return once


LOST = "its fields would be changed or lost"


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize(
    ("hint", "value", "why"),
    [
        (Price, Price(1), LOST),
        (list[Price], [Price(1)], LOST),
        (dict[str, tuple[Price, ...]] | None, {"a": (Price(1),)}, LOST),
        (MixedBox[Price], MixedBox([Price(1)]), LOST),
        (Once, grown(6), "too large"),
        (Account, Account(1, balance=900), LOST),
        (Anything | Account, Account(1, balance=900), LOST),
        (Closed, Closed(900), "Object missing required field `_balance`"),
        (Line, Discounted("a", percent=5), LOST),
        (Person, Employee(name="a", number=5), LOST),
        (dict[str, Any] | Person, Person(name="a"), "it would arrive as dict"),
        (list[dict[str, Any] | Line], [Line("a")], "it would arrive as list"),
    ],
)
def test_an_object_that_the_worker_would_create_otherwise_is_refused(
    hint: Any, value: Any, why: str, codec: Codec
) -> None:
    text = f"argument 'value' of {TASK} would not arrive as it is ({why}); pass plain values, or"
    for args, kwargs in (([value], {}), ([], {"value": value})):
        with pytest.raises(PayloadError, match=re.escape(text)):
            travel(asking(hint), args, kwargs, codec)
    bound, _ = travel(asking(hint), [value], codec="pickle")
    assert bound == [value]


@pytest.mark.parametrize(
    ("hint", "value", "read"),
    [
        (str | uuid.UUID, ID, "str"),
        (str | uuid.UUID | None, ID, "str"),
        (str | Color, Color.RED, "str"),
        (list[int] | set[int], {1}, "list"),
        (list[int] | tuple[int, ...], (1,), "list"),
    ],
    ids=str,
)
def test_a_member_of_a_union_that_would_arrive_as_another_is_refused(
    hint: Any, value: Any, read: str
) -> None:
    text = (
        f"argument 'value' of {TASK} would not arrive as it is (it would arrive as {read}); put "
        f"{type(value).__name__} first in the annotation, or use fewer types."
    )
    with pytest.raises(PayloadError, match=re.escape(text)):
        travel(asking(hint), [value])
    args, _ = travel(asking(hint), [value], codec="pickle")
    assert same(args, [value])


def test_a_member_of_a_union_may_arrive_as_one_that_equals_it() -> None:
    for hint, value in (
        (str | Shade, Shade.DARK),
        (set[int] | frozenset[int], frozenset({1})),
        (int | float | Level, Level.LOW),
    ):
        args, _ = travel(asking(hint), [value])
        assert args == [value]


def test_objects_among_any_number_of_arguments_are_checked_too() -> None:
    def send(*prices: Price, **named: Price) -> None: ...

    with pytest.raises(PayloadError, match=r"argument 'prices\[1\]' of"):
        travel(send, [Price(0), Price(1)])
    with pytest.raises(PayloadError, match="argument 'last' of"):
        travel(send, kwargs={"first": Price(0), "last": Price(1)})


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize(
    ("hint", "value", "read"),
    [
        (Price, {"cents": 1}, Price(1)),
        (list[Price], [{"cents": 1}], [Price(1)]),
        (tuple[Anything, int], ({"data": 5}, 6), (Anything(5), 6)),
        (Account, Account(1), Account(1)),
        (Price | None, None, None),
        (list[Line], (Line("a"),), [Line("a")]),
        (Anything, Anything((1, ID)), Anything([1, str(ID)])),
    ],
)
def test_plain_values_and_their_forms_are_not_compared(
    hint: Any, value: Any, read: Any, codec: Codec
) -> None:
    args, _ = travel(asking(hint), [value], codec=codec)
    assert args == [read]


def test_objects_that_cannot_be_compared_count_by_their_stored_form() -> None:
    (unequal,), _ = travel(asking(Unequal), [Unequal(5)])
    assert unequal.n == 5
    (twice,), _ = travel(asking(Anything), [Anything(1, at=TWICE)])
    assert twice.at.timestamp() == TWICE.timestamp()


PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text("aé\n")
LINES = st.builds(Line, st.text("ab"), st.integers(0, 9))
MOMENTS = st.datetimes(timezones=st.just(UTC)) | st.datetimes()
ORDERS = st.builds(Order, st.uuids(), MOMENTS, st.lists(LINES), st.none() | st.text("ab"))
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False)
TREES = st.recursive(
    st.builds(Tree, st.dates() | MOMENTS),
    lambda below: st.builds(Tree, st.dates() | MOMENTS, st.lists(below)),
    max_leaves=5,
)


@pytest.mark.slow
@ALL_CODECS
@given(
    order=ORDERS,
    trees=st.lists(TREES),
    sums=st.dictionaries(st.integers(-9, 9), DECIMALS),
    spans=st.dictionaries(st.uuids(), st.frozensets(st.timedeltas() | st.dates())),
    rest=st.lists(st.binary()),
    more=st.dictionaries(st.text("xyz", min_size=1), st.times()),
)
def test_whatever_they_hold(
    codec: Codec, order: Any, trees: Any, sums: Any, spans: Any, rest: Any, more: Any
) -> None:
    def send(
        order: Order,
        trees: list[Tree],
        sums: dict[int, Decimal],
        spans: dict[uuid.UUID, frozenset[timedelta | date]],
        *rest: bytes,
        **more: time,
    ) -> None: ...

    sent = [order, trees, sums, spans, *rest]
    args, kwargs = travel(send, sent, more, codec)
    assert same(args, sent)
    assert same(kwargs, more)


JSON = st.recursive(
    PLAIN | st.floats(), lambda x: st.lists(x) | st.dictionaries(st.text("ab"), x), max_leaves=5
)


@given(st.sampled_from([hint for hint, _ in THERE_AND_BACK]), JSON)
def test_whatever_comes_fits_or_is_an_error_of_ours(hint: Any, value: Any) -> None:
    text = ""
    try:
        bound(hint, value)
    except PayloadError as error:
        text = str(error)
    assert not text or text.startswith("argument 'value' of app.tasks:send: ")
    assert "\n" not in text


# -- what does not fit


@pytest.mark.parametrize(
    ("hint", "value", "text"),
    [
        (datetime, 5, "Expected `datetime`, got `int`."),
        (datetime, "soon", "Invalid RFC3339 encoded datetime."),
        (int, "5", "Expected `int`, got `str`."),
        (str, True, "Expected `str`, got `bool`."),
        (int, 1.5, "Expected `int`, got `float`."),
        (str, 5, "Expected `str`, got `int`."),
        (int, None, "Expected `int`, got `null`."),
        (list[int], [1, "a"], "Expected `int`, got `str` at value[1]."),
        (dict[str, int], {"a": "b"}, "Expected `int`, got `str` at value[...]."),
        (dict[int, int], {"a": 1}, "Expected `int`, got `str` as a key."),
        (Order, {"id": str(ID)}, "Object missing required field `placed`."),
        (Line, {"sku": 1}, "Expected `str`, got `int` at value.sku."),
        (list[Line], [{"sku": 1}], "Expected `str`, got `int` at value[0].sku."),
        (Literal["a"], "b", "Invalid enum value 'b'."),
        (Color, "pink", "Invalid enum value 'pink'."),
        (Rate, 0.7, "Invalid enum value 0.7."),
        (Right, 8, "Invalid enum value 8."),
        (Annotated[int, msgspec.Meta(gt=0)], 0, "Expected `int` >= 1."),
        (Annotated[list[int], msgspec.Meta(max_length=1)], [1, 2], "`array` of length <= 1."),
        (list[Annotated[str, msgspec.Meta(max_length=1)]], ["ab"], "Expected `str` of length <= 1"),
        (UserId, "5", "Expected `int`, got `str`."),
        (Path, 5, "Expected `Path`, got `int`."),
        (list[Path], [5], "Expected `Path`, got `int` at value[0]."),
        (datetime | uuid.UUID, 5, "Expected `datetime.datetime | uuid.UUID`, got `int`."),
        (list[date | uuid.UUID], [5], "got `int` at value[0]."),
        (dict[str, date | uuid.UUID], {"a": 5}, "got `int` at value['a']."),
        (tuple[date | uuid.UUID, int], [str(ID)], "Expected 2 items, got 1."),
        (tuple[date | uuid.UUID, int], 5, "Expected `tuple`, got `int`."),
        (list[date | uuid.UUID], "ab", "Expected `list`, got `str`."),
        (dict[str, date | uuid.UUID], [], "Expected `dict`, got `list`."),
        (Tree, {}, "Object missing required field `when`."),
        (Tree, 5, "Expected `Tree`, got `int`."),
        (Tree, {"when": "2030-01-01", "below": [{"when": 5}]}, "got `int` at value.below[0].when."),
        (User, {"name": "a"}, "born: Field required."),
        (User, {"name": 5, "born": "2030-01-01"}, "name: Input should be a valid string."),
        (list[User], [{"born": "2030-01-01"}], "name: Field required at value[0]."),
        (User, 5, "value: Input should be an object."),
        (Aliased, {"userId": 0}, "userId: Input should be greater than 0."),
        (Charge, {"type": "Other", "on": "2030-01-01"}, "Invalid value 'Other' at value.type"),
        (Pair, [1, "2030-01-01", 3], "Expected at most 2 items, got 3."),
        (Money, [1, "EUR", 3], "Expected `array` of length 1 to 2, got 3."),
    ],
    ids=str,
)  # fmt: skip
def test_a_value_that_does_not_fit_is_refused_by_its_name(hint: Any, value: Any, text: str) -> None:
    with pytest.raises(PayloadError) as caught:
        bound(hint, value)
    found = str(caught.value)
    assert found.startswith("argument 'value' of app.tasks:send: ")
    assert text in found


@dataclass
class Fussy:
    n: int

    def __post_init__(self) -> None:
        raise {1: ValueError, 2: KeyError}[self.n](self.n)


@pytest.mark.parametrize(("n", "text"), [(1, ": 1."), (2, ": KeyError: 2."), (3, ": KeyError: 3.")])
def test_a_type_that_refuses_what_it_is_made_of_is_an_error_of_ours(n: int, text: str) -> None:
    with pytest.raises(PayloadError) as caught:
        bound(Fussy, {"n": n})
    assert str(caught.value) == f"argument 'value' of app.tasks:send{text}"
    assert Signature.of(asking(Any, Fussy)).convert_result({"n": n}) == {"n": n}


@pytest.mark.parametrize("hint", [Tree, list[Any], Order])
def test_values_nested_without_end_are_refused(hint: Any) -> None:
    deep: dict[str, Any] = {"when": "2030-01-01"}
    for _ in range(100_000):
        deep = {"when": "2030-01-01", "below": [deep]}
    with pytest.raises(PayloadError, match="argument 'value' of"):
        bound(hint, deep)


def test_each_of_many_is_named() -> None:
    def send(a: int, *rest: int, **more: int) -> None: ...

    signature = Signature.of(send)
    for args, kwargs, name in (
        ([1, 2, "x"], {}, "rest[1]"),
        ([1], {"b": 1, "c": "x"}, "c"),
        (["x"], {}, "a"),
        ([], {"a": "x"}, "a"),
    ):
        with pytest.raises(PayloadError, match="got `str`") as caught:
            signature.bind(args, kwargs, TASK)
        assert str(caught.value).startswith(f"argument {name!r} of app.tasks:send: ")


def test_what_came_is_left_as_it_was() -> None:
    args, kwargs = [str(ID)], {"b": str(ID)}

    def send(a: uuid.UUID, b: uuid.UUID) -> None: ...

    assert Signature.of(send).bind(args, kwargs, TASK) == ([ID], {"b": ID})
    assert (args, kwargs) == ([str(ID)], {"b": str(ID)})


def test_a_record_without_room_for_a_key_stands_back_in_a_union() -> None:
    @dataclass
    class Less:
        a: int

    @dataclass
    class More:
        a: int
        b: int

    class Bare(pydantic.BaseModel):
        a: int

    assert bound(Bare | More, {"a": 1, "b": 2}) == More(1, 2)
    assert bound(Bare | More, {"a": 1}) == Bare(a=1)
    assert bound(Less | More, {"a": 1, "b": 2}) == More(1, 2)
    assert bound(Less | More, {"a": 1}) == Less(1)
    assert bound(Less | More, {"a": 1, "c": 2}) == Less(1), "as it is where none has room"


def test_a_default_of_none_lets_none_pass() -> None:
    def send(a: int = None, b: list[int] = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    assert Signature.of(send).bind([None], {"b": None}, TASK) == ([None], {"b": None})
    with pytest.raises(PayloadError, match="argument 'a'"):
        Signature.of(send).bind(["x"], {}, TASK)


def test_a_name_that_cannot_be_looked_up_spoils_no_other_and_is_told() -> None:
    def send(a: Unheard, b: uuid.UUID, c: list[Unheard] | None = None) -> Unheard: ...

    signature = Signature.of(send)
    assert signature.bind(["x", str(ID)], {"c": [1]}, TASK) == (["x", ID], {"c": [1]})
    assert signature.unresolved == ("a", "c", "return")


def test_options_may_be_a_typed_dict() -> None:
    def send(**options: Unpack[Address]) -> None: ...

    assert travel(send, kwargs={"street": "x", "since": NOW.date()})[1] == {
        "street": "x",
        "since": NOW.date(),
    }


# -- what can be called


class Sender:
    def __call__(self, when: datetime) -> None: ...


def before(n: int, when: datetime) -> None: ...


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@decorated
def wrapped(when: datetime, n: int = 0) -> None: ...


@pytest.mark.parametrize(
    ("function", "owner"),
    [
        (Sender(), None),
        (functools.partial(before, 5), None),
        (wrapped, None),
        (decorated(wrapped), None),
    ],
)
def test_whatever_can_be_called_has_a_signature(function: Any, owner: Any) -> None:
    assert travel(function, [NOW]) == ([NOW], {})
    assert travel(function, kwargs={"when": NOW}) == ([], {"when": NOW})


def test_methods_of_a_class() -> None:
    order = Order(ID, NOW, [Line("a", 2)])
    assert travel(Order.ship, [order, True], owner=Order) == ([order, True], {})
    assert travel(Order.make, [3], owner=Order) == ([3], {})
    assert travel(Order.cancel, [ID], owner=Order) == ([ID], {})
    assert travel(Order.find, [{"a": 1}], owner=Order) == ([{"a": 1}], {})
    assert travel(Order, [ID, NOW, [Line("a")]]) == ([ID, NOW, [Line("a")]], {})
    with pytest.raises(PayloadError, match=r"argument 'self' of .*missing required field `placed`"):
        Signature.of(Order.ship, Order).bind([{"id": str(ID)}], {}, TASK)


def test_a_model_has_methods_too() -> None:
    class Account(pydantic.BaseModel):
        id: uuid.UUID

        def close(self) -> None: ...

    assert travel(Account.close, [Account(id=ID)], owner=Account) == ([Account(id=ID)], {})


def test_a_function_that_does_not_say_takes_anything() -> None:
    for function in (dict.fromkeys, dict, os.putenv, print):
        signature = Signature.of(function)
        signature.check([1, 2], {}, TASK)
        assert signature.bind([1, 2], {}, TASK) == ([1, 2], {})


def test_a_wrapper_may_take_and_give_arguments_of_its_own() -> None:
    @decorated
    def send(connection: Plain, order_id: uuid.UUID) -> None: ...

    signature = Signature.of(send)
    signature.check([5], {}, TASK)
    signature.check([5], {"region": "eu"}, TASK)
    assert signature.bind([5], {"region": "eu"}, TASK) == ([5], {"region": "eu"})


# -- results


@pytest.mark.parametrize(
    ("hint", "value", "result"),
    [
        (uuid.UUID, str(ID), ID),
        (list[Line], [{"sku": "a", "count": 1}], [Line("a")]),
        (Awaitable[uuid.UUID], str(ID), ID),
        (Coroutine[Any, Any, uuid.UUID], str(ID), ID),
        (asyncio.Future[uuid.UUID], str(ID), ID),
        (None, None, None),
        (None, 5, 5),
        (uuid.UUID, None, None),
        (uuid.UUID, "no id", "no id"),
        (Any, 5, 5),
        ("Unheard", 5, 5),
        (typing.Iterator[int], [5], [5]),
        (User, {"name": "a", "born": "2030-01-02"}, User(name="a", born=NOW.date())),
    ],
    ids=str,
)
def test_a_result_becomes_what_was_declared_where_it_can(
    hint: Any, value: Any, result: Any
) -> None:
    assert same(Signature.of(asking(Any, hint)).convert_result(value), result)


def test_a_coroutine_function_declares_what_it_returns() -> None:
    async def send() -> uuid.UUID:
        return ID

    assert Signature.of(send).convert_result(str(ID)) == ID
    assert Signature.of(lambda: 0).convert_result("x") == "x"


# -- calls that do not fit


def some(a: int, b: int = 0, *, c: int, d: int = 0) -> None: ...


def by_position(a: int, b: int = 0, /, c: int = 0) -> None: ...


def many(a: int, *rest: int, **more: int) -> None: ...


def odd(a: int, /, **more: int) -> None: ...


FITS: list[tuple[Any, list[Any], dict[str, Any], str | None]] = [
    (some, [1], {"c": 3}, None),
    (some, [], {"a": 1, "c": 3}, None),
    (some, [1, 2], {"c": 3, "d": 4}, None),
    (some, [1], {"b": 2, "c": 3}, None),
    (some, [], {}, "needs its arguments 'a', 'c'"),
    (some, [1], {}, "needs its argument 'c'"),
    (some, [1], {"d": 1}, "needs its argument 'c'"),
    (some, [1, 2, 3], {"c": 3}, "takes 2 arguments by position, but 3 were given"),
    (some, [1], {"a": 1, "c": 3}, "is given its argument 'a' twice, by position and by name"),
    (some, [1], {"c": 3, "x": 3}, "takes no argument 'x' (it takes: b, c, d)"),
    (by_position, [1, 2, 3], {}, None),
    (by_position, [1], {"c": 3}, None),
    (by_position, [], {"a": 1}, "takes its argument 'a' by position only"),
    (by_position, [1], {"b": 1}, "takes its argument 'b' by position only"),
    (by_position, [], {}, "needs its argument 'a'"),
    (many, [1, 2, 3], {"x": 3}, None),
    (many, [], {"a": 1, "rest": 2}, None),
    (many, [], {"x": 1}, "needs its argument 'a'"),
    (many, [1], {"a": 1}, "is given its argument 'a' twice"),
    (odd, [1], {"a": 1}, None),
    (odd, [], {"a": 1}, "needs its argument 'a'"),
    (len, [], {}, "needs its argument 'obj'"),
    (lambda: 0, [1], {}, "takes 0 arguments by position, but 1 were given"),
    (lambda: 0, [], {"x": 1}, "takes no argument 'x' (it takes no other)"),
    (Order.make, [1, 2], {}, "takes 1 argument by position, but 2 were given"),
]


@pytest.mark.parametrize(("function", "args", "kwargs", "text"), FITS)
def test_a_call_that_cannot_be_made_is_refused_at_the_producer_and_by_the_worker(
    function: Any, args: Any, kwargs: Any, text: str | None
) -> None:
    signature = Signature.of(function)
    if text is None:
        signature.check(args, kwargs, TASK)
        signature.bind(args, kwargs, TASK)
        return
    with pytest.raises(UsageError) as caught:
        signature.check(args, kwargs, TASK)
    assert str(caught.value).startswith(f"app.tasks:send {text}")
    with pytest.raises(PayloadError) as refused:
        signature.bind(args, kwargs, TASK)
    assert text in str(refused.value)


ARGUMENTS = st.lists(st.just(1), max_size=4)
NAMED = st.dictionaries(st.sampled_from(["a", "b", "c", "d", "rest", "x"]), st.just(1))


@given(st.sampled_from([some, by_position, many, odd]), ARGUMENTS, NAMED)
def test_a_call_fits_when_python_would_take_it(function: Any, args: Any, kwargs: Any) -> None:
    try:
        function(*args, **kwargs)
    except TypeError:
        with pytest.raises(UsageError):
            Signature.of(function).check(args, kwargs, TASK)
    else:
        Signature.of(function).check(args, kwargs, TASK)


# -- a deploy between the two


def test_a_parameter_that_was_added_needs_a_default() -> None:
    def send(a: int, b: int) -> None: ...

    with pytest.raises(PayloadError, match=r"needs its argument 'b'; .* give it a default until"):
        Signature.of(send).bind([1], {}, TASK)


def test_a_parameter_that_was_removed_is_kept_until_its_jobs_are_done() -> None:
    def send(a: int) -> None: ...

    with pytest.raises(PayloadError, match=r"takes 1 argument by position, but 2 .* keep it"):
        Signature.of(send).bind([1, 2], {}, TASK)
    with pytest.raises(PayloadError, match=r"takes no argument 'b' .* keep it \(with a default\)"):
        Signature.of(send).bind([1], {"b": 2}, TASK)


@pytest.mark.parametrize(
    ("args", "kwargs", "more"),
    [
        ([1, 2], {}, True),
        ([1], {"b": 2}, True),
        ([], {"b": 2}, True),  # `a` may have gone
        ([1], {}, False),
        ([], {}, False),
        ([1], {"a": 2}, False),
        (["one"], {}, False),
    ],
)
def test_an_argument_that_a_newer_version_may_take_is_told_apart(
    args: Any, kwargs: Any, more: bool
) -> None:
    def send(a: int) -> None: ...

    assert Signature.of(send).has_more(args, kwargs) is more


def test_a_parameter_with_a_default_may_be_added_and_a_field_as_well() -> None:
    def before(x: Old) -> None: ...

    def after(x: New, y: int = 3) -> None: ...

    body = decode_body(encode_body(Body(TASK, [Old(1, 2)])))
    assert Signature.of(after).bind(body.args, body.kwargs, TASK)[0] == [New(1)]
    Signature.of(before).bind(body.args, body.kwargs, TASK)


# -- what the worker gives


class Resource:
    __bide_resource__ = "the pool"


def injected(a: int, pool: Plain = Resource(), b: int = 0) -> None: ...  # type: ignore[assignment]  # noqa: B008


def test_what_the_worker_gives_is_neither_sent_nor_converted() -> None:
    signature = Signature.of(injected)
    assert signature.injected == {"pool": "the pool"}
    signature.check([1], {"b": 2}, TASK)
    assert signature.bind([1], {"b": 2}, TASK) == ([1], {"b": 2})
    assert Signature.of(some).injected == {}


@pytest.mark.parametrize(("args", "kwargs"), [([1, 2], {}), ([1, 2, 3], {}), ([1], {"pool": 2})])
def test_a_job_that_brings_it_is_refused(args: list[Any], kwargs: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"gets its argument 'pool' from the worker; leave it out"):
        Signature.of(injected).check(args, kwargs, TASK)


# -- models


def test_models_work_and_bide_never_imports_pydantic() -> None:
    code = """
import sys
import bide
from bide.model.payload.body import Body, decode_body, encode_body
from bide.model.payload.signature import Signature

def send(when: "bide.Queue", n: int) -> None: ...
Signature.of(send).bind([1, 2], {}, "a:b")
assert "pydantic" not in sys.modules, "bide imported it"

class Model:
    '''Looks like one.'''
    def __init__(self, n): self.n = n
    def model_dump(self, **options): return {"n": self.n}
    @classmethod
    def model_validate(cls, value): return cls(value["n"])

def take(model: Model) -> None: ...
body = decode_body(encode_body(Body("a:b", [Model(5)])))
assert body.args == [{"n": 5}]
(model,), _ = Signature.of(take).bind(body.args, {}, "a:b")
assert type(model) is Model and model.n == 5
assert "pydantic" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class Written(pydantic.BaseModel):
    cents: int = pydantic.Field(default=0, serialization_alias="amountCents")


class WrittenAndNeeded(pydantic.BaseModel):
    cents: int = pydantic.Field(serialization_alias="amountCents")


class Read(pydantic.BaseModel):
    cents: int = pydantic.Field(default=0, validation_alias="amount_cents")


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr


class Logins(pydantic.BaseModel):
    passwords: dict[str, pydantic.SecretBytes]


class Excluded(pydantic.BaseModel):
    n: int = pydantic.Field(default=0, exclude=True)


class Private(pydantic.BaseModel):
    _n: int = pydantic.PrivateAttr(default=0)


class Holder(pydantic.BaseModel):
    person: Person


class Ratio(pydantic.BaseModel):
    ratio: float | None


class Again(pydantic.BaseModel):
    n: int

    @pydantic.model_validator(mode="after")
    def double(self) -> Again:
        self.n *= 2
        return self


class Cached(pydantic.BaseModel):
    n: int

    @functools.cached_property
    def square(self) -> int:
        return self.n**2


def with_cache() -> Cached:
    cached = Cached(n=5)
    assert cached.square == 25
    return cached


def with_private(n: int) -> Private:
    private = Private()
    private._n = n
    return private


CHANGED = (
    r"argument 'value' of .*: field '{}' of \w+ is lost or changed .*; give each field one alias="
)


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Written(cents=500), CHANGED.format("cents")),
        (
            WrittenAndNeeded(cents=500),
            r"cannot be read back from its JSON \(cents: Field required\);",
        ),
        (Read.model_validate({"amount_cents": 500}), CHANGED.format("cents")),
        (Login(password=pydantic.SecretStr("one")), CHANGED.format("password")),
        (Logins(passwords={"a": pydantic.SecretBytes(b"one")}), CHANGED.format("passwords")),
        (Excluded(n=5), CHANGED.format("n")),
        (Holder(person=Employee(name="a", number=5)), CHANGED.format("person")),
        (Again(n=5), CHANGED.format("n")),
        (Ratio(ratio=float("nan")), "holds a NaN or an infinity"),
        (Ratio(ratio=float("inf")), "holds a NaN or an infinity"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_model_that_would_arrive_changed_is_refused(value: Any, text: str, codec: Codec) -> None:
    for sent in (value, [value]):
        with pytest.raises(PayloadError, match=text):
            travel(asking(Any), [sent], codec=codec)
    with pytest.raises(PayloadError, match=text.replace("argument 'value'", "The result")):
        encode_result(TASK, value, codec)


class Area(pydantic.BaseModel, extra="forbid"):
    side: int

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def square(self) -> int:
        return self.side**2


class Parsed(pydantic.BaseModel):
    numbers: pydantic.Json[list[int]]


class Event(pydantic.BaseModel, extra="allow"):
    at: datetime | None = None
    data: Any = None


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize(
    ("value", "read"),
    [
        (Area(side=3), None),
        (Parsed.model_validate({"numbers": "[1, 2]"}), None),
        (with_private(0), None),
        (with_private(5), Private()),
        (with_cache(), None),
        (Event.model_validate({"at": NOW, "more": 5}), None),
        (Event(data=(1, NOW)), Event(data=[1, NOW.isoformat().replace("+00:00", "Z")])),
        (Event(at=TWICE), Event(at=datetime.fromisoformat("2024-10-27T02:30+01:00"))),
    ],
    ids=repr,
)
def test_a_model_that_reads_what_it_writes_arrives(value: Any, read: Any, codec: Codec) -> None:
    args, _ = travel(asking(type(value)), [value], codec=codec)
    assert args == [read or value]


def test_a_variable_of_a_class_is_no_field_of_its_objects() -> None:
    args, _ = travel(asking(Coded), [Coded(1)])
    assert args == [Coded(1)]


def test_a_model_that_came_already_made_is_the_same_object() -> None:
    user = User(name="a", born=NOW.date())
    assert bound(User, user) is user
    assert bound(PurePath, p := Path("a")) is p
