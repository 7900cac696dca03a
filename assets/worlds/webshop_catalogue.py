"""Writes the embedded WebShop catalogue: invented products in the three files of the official format.

Run it with `python -m assets.worlds.webshop_catalogue` (writes over the shipped files). The same code gives the
same bytes on every machine: one seeded `random.Random`, lists only, no hash order.

A shelf is one product kind with eleven near-duplicates. What separates them is what a shopper has to learn:

* material and style stand in the title, so a search with both words brings the product to the first page;
* a *feature pair* shares material and style and differs in a feature that only the features page names;
* a *price pair* shares everything but the price, and the dear one is above every ceiling of the cheap one;
* option values (size, colour, flavour, ...) count only when they are clicked.

An identifier is ten digits, the shelf's five and the product's five: a page and a lower-cased action spell it alike,
and a small vocabulary can copy it in two words.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alignopsd_trl.environments.webshop.engine.files import EMBEDDED

SEED = 20240
SHELF_SIZE = 11
CATALOGUE = EMBEDDED
FILES = ("items_shuffle.json", "items_ins_v2.json", "items_human_ins.json")

BRANDS = "Velmora Tarkin Oldura Brisko Quenby Lumaro Feldan Norvia Castel Mirano Pelgro Sundry".split()
CHEAP = (9.5, 12.0, 15.5, 18.0, 22.5, 26.0, 29.5, 33.0, 38.5, 44.0)
DEAR = (96.0, 104.5, 112.0, 125.5, 138.0, 149.5)

COLOR = ("color", ("red", "blue", "green", "black", "white"))
SIZE = ("size", ("small", "medium", "large"))
PACK = ("pack", ("single", "double", "triple", "dozen"))
FLAVOR = ("flavor", ("vanilla", "lemon", "berry", "honey", "apple"))
SCENT = ("scent", ("lavender", "citrus", "jasmine", "eucalyptus"))
VOLUME = ("volume", ("mini", "midi", "maxi"))
LENGTH = ("length", ("short", "regular", "long"))


@dataclass(frozen=True)
class Aisle:
    """A group of shelves that share their words."""

    category: str
    path: str
    kinds: tuple[str, ...]
    materials: tuple[str, ...]
    styles: tuple[str, ...]
    features: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Traits:
    """One product before it gets a name: what a shopper can tell it from its neighbours by."""

    material: str
    style: str
    feature: str
    prices: tuple[float, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    asks_feature: bool


AISLES = (
    Aisle(
        "fashion",
        "Clothing › Apparel",
        ("shirt", "dress", "jacket", "sweater", "hoodie", "skirt", "coat"),
        ("cotton", "linen", "wool", "fleece"),
        ("slim fit", "loose cut", "high waist", "long sleeve"),
        ("machine wash", "dry clean", "easy iron"),
        (SIZE, COLOR),
    ),
    Aisle(
        "fashion",
        "Clothing › Footwear",
        ("boot", "sneaker", "sandal"),
        ("leather", "suede", "canvas", "mesh"),
        ("rubber sole", "memory foam", "arch support", "open toe"),
        ("non slip", "lace up", "quick dry"),
        (SIZE, COLOR),
    ),
    Aisle(
        "beauty",
        "Beauty › Hair Care",
        ("shampoo", "conditioner", "serum"),
        ("herbal", "mineral", "argan", "coconut"),
        ("damaged hair", "curly ends", "oily scalp", "daily shine"),
        ("cruelty free", "paraben safe", "long lasting"),
        (SCENT, VOLUME),
    ),
    Aisle(
        "beauty",
        "Beauty › Skin Care",
        ("lotion", "soap", "sunscreen", "lipstick", "deodorant", "perfume", "mask"),
        ("herbal", "mineral", "argan", "coconut"),
        ("sensitive skin", "deep moisture", "night repair", "soft touch"),
        ("cruelty free", "paraben safe", "long lasting"),
        (SCENT,),
    ),
    Aisle(
        "grocery",
        "Grocery › Food",
        ("cookie", "cereal", "candy", "bread", "cheese", "sauce", "seasoning"),
        ("organic", "vegan", "keto", "kosher"),
        ("sugar free", "low carb", "whole grain", "high fiber"),
        ("non gmo", "nut safe", "fair trade"),
        (FLAVOR, PACK),
    ),
    Aisle(
        "grocery",
        "Grocery › Drinks",
        ("tea", "coffee", "juice"),
        ("organic", "vegan", "keto", "kosher"),
        ("cold brew", "low acid", "rich taste", "hand picked"),
        ("non gmo", "nut safe", "fair trade"),
        (FLAVOR,),
    ),
    Aisle(
        "electronics",
        "Electronics › Devices",
        ("speaker", "headphone", "camera", "tablet", "monitor", "projector"),
        ("wireless", "portable", "foldable", "compact"),
        ("high speed", "clear sound", "long range", "wide angle"),
        ("noise cancelling", "shock proof", "energy saving"),
        (COLOR,),
    ),
    Aisle(
        "electronics",
        "Electronics › Accessories",
        ("charger", "cable", "keyboard", "adapter"),
        ("wireless", "portable", "foldable", "compact"),
        ("heavy duty", "fast charging", "dual port", "plug play"),
        ("water resistant", "shock proof", "energy saving"),
        (COLOR, LENGTH),
    ),
    Aisle(
        "garden",
        "Home › Furniture",
        ("chair", "table", "shelf", "cabinet", "stool"),
        ("wooden", "metal", "bamboo", "glass"),
        ("living room", "home office", "modern design", "space saver"),
        ("easy assembly", "scratch proof", "weather resistant"),
        (COLOR, SIZE),
    ),
    Aisle(
        "garden",
        "Home › Decor",
        ("lamp", "mirror", "rug", "pillow", "curtain"),
        ("velvet", "woven", "bamboo", "striped"),
        ("living room", "modern design", "hand made", "floral print"),
        ("easy clean", "dust proof", "fade resistant"),
        (COLOR,),
    ),
)

TITLES = (
    "{brand} {material} {style} {kind}",
    "{brand} {style} {material} {kind}",
    "{brand} {kind}, {material} {style}",
)
REQUESTS = (
    "find me {material} {style} {kind}",
    "i need {style} {material} {kind}",
    "looking for {kind}, {material}, {style}",
)


def shelves() -> Iterator[tuple[Aisle, str]]:
    return ((aisle, kind) for aisle in AISLES for kind in aisle.kinds)


def shelf_traits(aisle: Aisle, draw: random.Random) -> list[Traits]:
    """Eleven products of one kind: two feature pairs, two price pairs, three of their own."""
    looks = draw.sample(list(itertools.product(aisle.materials, aisle.styles)), 7)
    products: list[Traits] = []
    for material, style in looks[:2]:
        options, prices = draw_options(aisle, draw), draw.sample(CHEAP, 2)
        features = draw.sample(aisle.features, 2)
        products += [
            Traits(material, style, feature, (price,), options, True)
            for feature, price in zip(features, prices, strict=True)
        ]
    for material, style in looks[2:4]:
        options, feature = draw_options(aisle, draw), draw.choice(aisle.features)
        for price in (draw.choice(CHEAP), draw.choice(DEAR)):
            products.append(Traits(material, style, feature, (price,), options, False))
    for material, style in looks[4:]:
        prices = (draw.choice(CHEAP),) if draw.random() < 0.9 else tuple(sorted(draw.sample(CHEAP, 2)))
        products.append(Traits(material, style, draw.choice(aisle.features), prices, draw_options(aisle, draw), False))
    draw.shuffle(products)
    return products


def draw_options(aisle: Aisle, draw: random.Random) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """A page offers two or three values of each option group; one page in eight offers no choice at all."""
    if draw.random() < 0.125:
        return ()
    chosen = []
    for name, values in aisle.options:
        kept = set(draw.sample(range(len(values)), 2 if chosen else 3))
        chosen.append((name, tuple(value for place, value in enumerate(values) if place in kept)))
    return tuple(chosen)


def draw_asins(draw: random.Random, shelves_count: int, size: int) -> list[str]:
    """One identifier a product, shelf by shelf. The product codes are the same on every shelf, in another order."""
    codes = draw.sample(range(10_000, 100_000), shelves_count + size)
    products = codes[shelves_count:]
    return [f"{shelf}{product}" for shelf in codes[:shelves_count] for product in draw.sample(products, size)]


def product_record(asin: str, aisle: Aisle, kind: str, traits: Traits, draw: random.Random) -> dict[str, Any]:
    words = {"kind": kind, "material": traits.material, "style": traits.style, "brand": draw.choice(BRANDS)}
    price = " - ".join(f"${price}" for price in traits.prices)
    return {
        "asin": asin,
        "name": draw.choice(TITLES).format(**words),
        "full_description": f"A {kind} by {words['brand']} made for every day.",
        "small_description": [f"{traits.material} and {traits.style}", traits.feature, "ships in one week"],
        "pricing": price,
        "customization_options": {
            name: [{"value": value, "image": None} for value in values] for name, values in traits.options
        },
        "images": [f"{asin}.jpg"],
        "category": aisle.category,
        "query": kind,
        "product_category": f"{aisle.path} › {kind.capitalize()}",
    }


def request_record(kind: str, traits: Traits, draw: random.Random) -> dict[str, Any]:
    wanted = [traits.material, traits.style]
    request = draw.choice(REQUESTS).format(kind=kind, material=traits.material, style=traits.style)
    if traits.asks_feature:
        wanted.append(traits.feature)
        request += f" that is {traits.feature}"
    return {
        "attributes": [traits.material, traits.style, traits.feature],
        "instruction": request,
        "instruction_attributes": wanted,
    }


def human_record(asin: str, request: dict[str, Any], traits: Traits, draw: random.Random) -> dict[str, Any]:
    values = [draw.choice(values) for _, values in traits.options]
    asked = request["instruction"] + (f" in {' and '.join(values)}" if values else "")
    return {
        "asin": asin,
        "instruction": f"{asked}.",
        "attributes": request["attributes"],
        "instruction_attributes": request["instruction_attributes"],
        "options": values,
        "instruction_options": values,
    }


def make(seed: int = SEED) -> dict[str, str]:
    """File name -> text of the three files, for this seed. Every fourth product also has a human-style request."""
    draw = random.Random(seed)
    stock = [(aisle, kind, traits) for aisle, kind in shelves() for traits in shelf_traits(aisle, draw)]
    asins = draw_asins(draw, len(list(shelves())), SHELF_SIZE)
    items, requests, human = [], {}, {}
    for number, (asin, (aisle, kind, traits)) in enumerate(zip(asins, stock, strict=True)):
        items.append(product_record(asin, aisle, kind, traits, draw))
        requests[asin] = request_record(kind, traits, draw)
        if number % 4 == 0:
            human[asin] = [human_record(asin, requests[asin], traits, draw)]
    draw.shuffle(items)
    return {
        name: json.dumps(content, ensure_ascii=False, indent=1) + "\n"
        for name, content in zip(FILES, (items, requests, human), strict=True)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=CATALOGUE, help="folder of the three files")
    folder = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in make().items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
