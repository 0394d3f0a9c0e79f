"""The message for a name that is not known."""

from loops import every

from tracegen.shared.errors import LONGEST_LIST, SHOWN, unknown

MANY = [f"trace-{number:03}" for number in range(LONGEST_LIST + 1)]


@every(
    ("given", "known", "message"),
    [
        (
            "hgx-h80",
            ["other", "hgx-h800"],
            "unknown system 'hgx-h80' (did you mean 'hgx-h800'?); known: hgx-h800, other",
        ),
        ("zzz", ["b", "a"], "unknown system 'zzz'; known: a, b"),
        ("zzz", [], "unknown system 'zzz'; known: none"),
        ("zzz", ["b, c", "a"], "unknown system 'zzz'; known: 'a', 'b, c'"),
        ("trace-0077", MANY, "unknown system 'trace-0077' (did you mean 'trace-007'?)"),
    ],
)
def test_the_nearest_name_and_all_that_are_possible(given: str, known: list[str], message: str) -> None:
    assert str(unknown("system", given, known)) == message


def test_a_long_list_without_a_near_name_is_cut_and_counted() -> None:
    message = str(unknown("trace", "zzz", reversed(MANY)))
    assert message.endswith(f"known: {', '.join(MANY[:SHOWN])}, ... ({len(MANY)} in all)")
    assert str(unknown("trace", "zzz", MANY[1:])).endswith(", ".join(MANY[1:]))


def test_a_caller_may_say_what_is_near() -> None:
    message = str(unknown("key", "links", ["a.links", "b.links"], near=["b.links", "a.links"]))
    assert "(did you mean 'b.links' or 'a.links'?)" in message
