"""Small repositories with one mistake each, made from a number. A repository is modules with tests; one line is wrong,
so that a test fails."""

import random
import re
from dataclasses import dataclass

MODULES = {  # N1, N2, ... become numbers; a parameter's name says what `argument` draws for it
    "cart": """
def total(prices):
    result = 0
    for price in prices:
        result = result + price
    return result


def change(paid, price):
    return paid - price


def refund(paid, price):
    return change(paid, price) * N1


def shipping(weight):
    cost = N2
    if weight > N3:
        cost = cost + weight * N4
    return cost
""",
    "clock": """
def minutes(hour, rest):
    return hour * 60 + rest


def later(hour, step):
    return (hour + step) % 24


def closed(hour):
    return hour >= 1N1 or hour < N2


def busy(hour, starts):
    for start in starts:
        if start <= hour and hour < start + N3:
            return True
    return False


def shifts(hour, step):
    return later(hour, N4) - later(step, N1)
""",
    "scores": """
def best(scores):
    result = scores[0]
    for score in scores:
        if score > result:
            result = score
    return result


def passed(scores):
    count = 0
    for score in scores:
        if score >= N1:
            count = count + 1
    return count


def rises(scores):
    count = 0
    for place in range(1, len(scores)):
        if scores[place] > scores[place - 1]:
            count = count + 1
    return count


def middle(scores):
    ordered = sorted(scores)
    return ordered[len(ordered) // 2] * N2
""",
    "stock": """
def missing(wanted, held):
    if wanted > held:
        return wanted - held
    return 0


def cost(wanted, held):
    return missing(wanted, held) * N1


def boxes(amount):
    return (amount + N2 - 1) // N2


def shelf(place):
    return place // N3 + 1


def heaviest(weights):
    result = weights[0]
    for weight in weights[1:]:
        if weight > result:
            result = weight
    return result
""",
    "series": """
def triangle(size):
    result = 0
    for number in range(1, size + 1):
        result = result + number
    return result


def power(base, exponent):
    result = 1
    for _ in range(exponent):
        result = result * base
    return result


def scaled(base, exponent):
    return power(base, exponent) + N1


def clamped(value):
    if value < N2:
        return N2
    if value > 1N3:
        return 1N3
    return value
""",
    "names": """
def initials(words):
    result = ""
    for word in words:
        result = result + word[0]
    return result


def shortened(text, size):
    if len(text) <= size:
        return text
    return text[:size] + "."


def label(text, size):
    return shortened(text, size) + "-" * N1


def vowels(text):
    count = 0
    for letter in text:
        if letter in "aeiou":
            count = count + 1
    return count


def longest(words):
    result = words[0]
    for word in words:
        if len(word) > len(result):
            result = word
    return result
""",
    "bank": """
def balance(amounts):
    result = N1
    for amount in amounts:
        result = result + amount
    return result


def withdrawn(held, amount):
    if amount <= held:
        return held - amount
    return held


def left(held, amount):
    return withdrawn(held, amount) - N2


def years(held, goal):
    count = 0
    for _ in range(N3):
        if held < goal:
            held = held + N4
            count = count + 1
    return count
""",
    "grid": """
def diagonal(grid):
    result = 0
    for place in range(len(grid)):
        result = result + grid[place][place]
    return result


def cell(row, column):
    return row * N1 + column


def below(row, column):
    return cell(row, column) + N1


def corner(grid):
    return grid[-1][0] - grid[0][-1]


def inside(row, column):
    return row < N2 and column <= N3
""",
}
"""Modules by their names. All functions of one are in a repository."""

MISTAKES = {
    "operator": [(r" \+ ", " - "), (r" - ", " + "), (r" \* ", " + "), (r" // ", " % "), (r" % ", " // ")],
    "boundary": [(" < ", " <= "), (" <= ", " < "), (" > ", " >= "), (" >= ", " > ")],
    "off by one": [(r"range\((\w+)\)", r"range(\1 - 1)"), (r" [+-] 1\b", ""), (r"range\(1, ", "range(2, ")],
    "start": [("= 0$", "= 1"), ("= 1$", "= 0"), ('= ""$', '= "-"'), (r"\[0\]$", "[-1]"), (r"\[0\]\[-1\]", "[0][0]")],
    "missing return": [("return ", "")],
    "swapped arguments": [(r"(\w+)\((\w+), (\w+)\)(?!:)", r"\1(\3, \2)")],
    "negation": [(r"\bif ", "if not "), (r"\band\b", "or"), (r"\bor\b", "and")],
}
"""Patterns in a line that is right, and what makes it wrong."""


@dataclass(frozen=True)
class Repository:
    """Files with a mistake, their tests, and the line that mends them: ``line`` of ``file`` is ``wrong`` and must be
    ``right``."""

    files: dict
    tests: dict
    mistake: str
    file: str
    line: int
    wrong: str
    right: str

    @property
    def patch(self):
        heads = f"--- a/{self.file}\n+++ b/{self.file}\n@@ -{self.line} +{self.line} @@"
        return f"{heads}\n-{self.wrong}\n+{self.right}\n"


def repository(seed, modules, mistakes, size=2):
    """Makes a repository of ``size`` modules with one of the mistakes, both by their names."""
    draw = random.Random(seed)
    while True:
        sources = {name: numbered(MODULES[name], draw) for name in draw.sample(sorted(modules), size)}
        asked = {name: calls(source, draw) for name, source in sources.items()}
        mistake = draw.choice(sorted(mistakes))
        found = [
            (name, place, wrong)
            for name, source in sources.items()
            for place, wrong in wrong_lines(source, MISTAKES[mistake])
        ]
        draw.shuffle(found)
        for name, place, wrong in found:
            if not fails(replaced(sources[name], place, wrong), asked[name]):
                continue  # the tests don't see it
            right = sources[name].splitlines()[place]
            files = {f"{one}.py": source for one, source in sources.items()}
            files[f"{name}.py"] = replaced(sources[name], place, wrong)
            tests = {f"test_{one}.py": test(one, some) for one, some in asked.items()}
            return Repository(files, tests, mistake, f"{name}.py", place + 1, wrong, right)


def numbered(source, draw):
    numbers = {f"N{one}": str(draw.randint(2, 9)) for one in range(1, 5)}
    return re.sub(r"N\d", lambda found: numbers[found[0]], source.lstrip())


def wrong_lines(source, mistakes):
    """Yields the number of each line that a mistake fits, and the line with it."""
    for place, line in enumerate(source.splitlines()):
        for pattern, wrong in mistakes if not line.startswith("def ") else []:
            if (changed := re.sub(pattern, wrong, line, count=1)) != line:
                yield place, changed


def replaced(source, place, line):
    lines = source.splitlines()
    return "\n".join([*lines[:place], line, *lines[place + 1 :]]) + "\n"


def calls(source, draw, times=3):
    """Calls every function of a module, and returns names, arguments and results."""
    known = {}
    exec(source, known)
    functions = re.findall(r"^def (\w+)\((.+)\):", source, re.MULTILINE)
    drawn = [(name, tuple(argument(one, draw) for one in names.split(", "))) for name, names in functions * times]
    return [(name, given, known[name](*given)) for name, given in sorted(drawn, key=lambda one: one[0])]


def argument(name, draw):
    """Draws what a parameter is called with, by its name."""
    if name == "grid":
        return [[draw.randint(1, 9) for _ in range(3)] for _ in range(3)]
    if name in ("text", "words"):
        words = [draw.choice(["amber", "oak", "pine", "copper", "tea", "ivory", "salt"]) for _ in range(4)]
        return words if name == "words" else " ".join(words[:2])
    return [draw.randint(1, 20) for _ in range(5)] if name.endswith("s") else draw.randint(1, 12)


def fails(source, asked):
    """Whether a module with a mistake gives another result for one of the calls."""
    known = {}
    exec(source, known)
    try:
        return any(known[name](*given) != result for name, given, result in asked)
    except (TypeError, ValueError, IndexError, ZeroDivisionError):  # of the mistake
        return True


def test(module, asked):
    """Writes the tests of a module, for pytest."""
    names = list(dict.fromkeys(name for name, _, _ in asked))
    text = f"from {module} import {', '.join(names)}\n"
    for name in names:
        said = [f"    assert {one}{shown(given)} == {result!r}\n" for one, given, result in asked if one == name]
        text += f"\n\ndef test_{name}():\n{''.join(said)}"
    return text


def shown(given):
    return f"({', '.join(map(repr, given))})"
