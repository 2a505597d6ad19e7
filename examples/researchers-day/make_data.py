"""Orders as a shop has them after some years: `python make_data.py orders.csv 200000`.

Semicolons, an encoding of its own, a quoted title with a separator, times in three forms, blank lines, repeated rows,
rows without a customer, a time or half of their fields, zero bytes, and a last line that was never finished. About one
row in a hundred is broken.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

ITEMS_PER_ROW, USERS_PER_ROW, TASTES = 0.008, 0.025, 20
FIRST, SECONDS = 1_640_995_200, 3 * 365 * 86_400
BROKEN = [
    ";{item};{time};{title}",
    "{user};;{time};{title}",
    "{user};{item};;{title}",
    "{user};{item};soon;{title}",
    "{user};{item}",
    '{user};{item};{time};"{title}',
    "{user};{item};{time};{title};;again",
    "NaN;{item};{time};{title}",
    "{user};{item}\0\0;{time};{title}",
]


def orders(rows: int, seed: int = 0) -> str:
    """The text of the file; customers of one taste buy the same articles, and half of all customers only a few."""
    source = np.random.default_rng(seed)
    users, items = max(40, int(rows * USERS_PER_ROW)), max(60, int(rows * ITEMS_PER_ROW))
    taste, kind = source.integers(TASTES, size=users), np.arange(items) % TASTES
    liked = 1 / (1 + source.permutation(items)) ** 0.8
    of_taste = [np.where(kind == one, 12.0, 0.4) * liked for one in range(TASTES)]
    chances = [weights / weights.sum() for weights in of_taste]
    counts = np.maximum(1, source.lognormal(0, 1.2, users) * rows / users / 2).astype(int)
    counts[1] = counts.max()  # somebody to recommend to, however few rows there are
    who = source.choice(users, rows, p=counts / counts.sum())
    what = np.empty(rows, dtype=int)
    for one in range(TASTES):
        here = taste[who] == one
        what[here] = source.choice(items, here.sum(), p=chances[one])
    when = FIRST + source.integers(SECONDS, size=rows)
    lines = ["customer;article;bought at;title"]
    for row in range(rows):
        item, second = int(what[row]), int(when[row])
        # The shop changed its program twice.
        forms = [datetime.fromtimestamp(second, UTC).isoformat(), str(second), str(second * 1000)]
        time = forms[0 if second < FIRST + SECONDS // 3 else 1 if second < FIRST + 2 * SECONDS // 3 else 2]
        fields = {"user": f"c{who[row]:05d}", "item": f"a{item:04d}", "time": time, "title": f"Crème no. {item}"}
        draw = source.random()
        if draw < 0.01:
            lines.append(BROKEN[row % len(BROKEN)].format(**fields))
            continue
        fields["title"] = f'"Crème; no. {item}"' if item % 3 == 0 else fields["title"]
        lines += ["{user};{item};{time};{title}".format(**fields)] * (2 if draw < 0.02 else 1)
        lines += [""] * (draw > 0.998)
    return "\r\n".join(lines)[:-7]


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(orders(int(sys.argv[2])).encode("cp1252"))
