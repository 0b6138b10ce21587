"""A staff directory: secondary indexes by city and by email, which is unique.

A row and its index entries are written in one transaction, so that an index always agrees with the rows, also
while many clients hire, move and dismiss people at once. An email is looked up in the transaction that takes
it: if another transaction takes the same one, only one of them commits.
"""

from __future__ import annotations

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

import wbkv
from wbkv import codecs

CITIES: Final = ("Lisbon", "Oslo", "Rome")


@dataclass(frozen=True)
class Person:
    """A row of the directory."""

    email: str
    city: str


BY_CITY, BY_EMAIL = "staff.city/", "staff.email/"
STAFF: Final = wbkv.Table(
    "staff/",
    codecs.json_of(Person),
    {BY_CITY: lambda person: person.city, BY_EMAIL: lambda person: person.email},
)


@wbkv.transactional
def hire(tx: wbkv.Transaction[bytes], name: str, person: Person) -> bool:
    """Add a person. Return False if another one has the email."""
    if any(True for _ in STAFF.find(tx, BY_EMAIL, person.email)):
        return False
    STAFF.put(tx, name, person)
    return True


@wbkv.transactional
def move(tx: wbkv.Transaction[bytes], name: str, city: str) -> None:
    """Let a person work in another city."""
    person = STAFF.get(tx, name)
    if person is not None:
        STAFF.put(tx, name, replace(person, city=city))


@wbkv.transactional
def close_office(tx: wbkv.Transaction[bytes], city: str) -> int:
    """Dismiss everybody in a city. Return how many there were."""
    names = [name for name, _ in STAFF.find(tx, BY_CITY, city)]
    for name in names:
        STAFF.delete(tx, name)
    return len(names)


@wbkv.transactional
def check(tx: wbkv.Transaction[bytes]) -> dict[str, int]:
    """Compare the indexes with the rows. Return the number of people by city."""
    rows = tx.using(codecs.json_of(Person))
    found = {entry.name.removeprefix("staff/"): entry.value for entry in rows.scan("staff/")}
    for name, person in found.items():
        assert [each.decode() for each, _ in STAFF.find(tx, BY_EMAIL, person.email)] == [name]
    by_city = {city: [name.decode() for name, _ in STAFF.find(tx, BY_CITY, city)] for city in CITIES}
    assert {name: city for city, names in by_city.items() for name in names} == {
        name: person.city for name, person in found.items()
    }, "an index differs from the rows"
    assert tx.count(BY_CITY) == tx.count(BY_EMAIL) == len(found), "an index has entries without a row"
    return {city: len(names) for city, names in by_city.items()}


def main(client: wbkv.Client[bytes]) -> None:
    """Hire, move and dismiss people from several threads, and compare all the time."""
    for prefix in ("staff/", BY_CITY, BY_EMAIL):
        client.delete(wbkv.prefix(prefix))
    rng = random.Random(1)
    with ThreadPoolExecutor(4) as threads:
        # Everybody applies twice, under two names, with the same email.
        hired = list(
            threads.map(
                lambda n: hire(client, f"{n:02}", Person(f"{n // 2}@example.com", CITIES[n % 3])), range(40)
            )
        )
        moves = [
            threads.submit(move, client, f"{rng.randrange(40):02}", rng.choice(CITIES)) for _ in range(40)
        ]
        closed = threads.submit(close_office, client, "Rome")
        check(client)
        for each in moves:
            each.result()
    assert sum(hired) == 20, f"{sum(hired)} people have 20 emails"
    left = check(client)
    assert sum(left.values()) == 20 - closed.result()
    print(", ".join(f"{count} in {city}" for city, count in left.items()))
    print(f"{closed.result()} of 20 people dismissed; the indexes agree with the rows")


if __name__ == "__main__":
    start = wbkv.open if sys.argv[1:] == ["--embedded"] else wbkv.connect
    with start() as store:
        main(store)
