"""Five tricks against a dealer who leads. A higher card of the same suit wins, or any card of the trump suit, which the
house has and nobody says. Each trick pays; three of five win the game."""

from generated import suite_of

from alignopsd_trl.environments import Opening, PlainEnvironment, Step

SUITS = ("cups", "coins", "swords")
TRUMPS = {"Amber": "coins", "Birch": "swords", "Cedar": "cups"}
HAND, TRICKS, NEEDED = 4, 5, 3


def rank(card):
    return int(card.split()[0])


def suit(card):
    return card.split()[-1]


class Cards(PlainEnvironment):
    history_length, max_turns = 1, TRICKS

    def reset(self, house, deck, **columns):
        self.house, self.trump, self.deck, self.hand = house, TRUMPS[house], list(deck), deck[:HAND]
        self.next, self.tricks, self.played, self.lead = HAND, 0, 0, ""
        self._deal()
        return Opening(self._shown(), f"Win three tricks in house {house}.", self._actions())

    def step(self, action):
        valid = action in self._actions()
        won_trick = valid and self.wins(action.removeprefix("play "))
        if valid:
            self.hand.remove(action.removeprefix("play "))
        said = f"{'Won' if won_trick else 'Lost'} against {self.lead}."
        self.tricks, self.played = self.tricks + won_trick, self.played + 1
        done, won = self.played == TRICKS, self.tricks >= NEEDED
        if not done:
            self._deal()
        return Step(
            f"{said} {self._shown()}",
            reward=won_trick / TRICKS,
            done=done,
            won=done and won,
            score=self.tricks / TRICKS,
            admissible=self._actions(),
            valid=valid,
        )

    def wins(self, card):
        if suit(card) == suit(self.lead):
            return rank(card) > rank(self.lead)
        return suit(card) == self.trump

    def _deal(self):
        self.lead = self.deck[self.next]
        self.hand += [self.deck[self.next + 1]] * (len(self.hand) < HAND)
        self.next += 2

    def _actions(self):
        return tuple(f"play {card}" for card in self.hand)

    def _shown(self):
        return f"The dealer leads {self.lead}. Your cards: {', '.join(self.hand)}. Tricks: {self.tricks}."


def make(draw):
    deck = [f"{number} of {one}" for number in range(1, 8) for one in SUITS]
    return {"house": draw.choice(list(TRUMPS)), "deck": draw.sample(deck, HAND + 2 * TRICKS)}


def skill(task_text, row):
    return f"In house {row['house']} {TRUMPS[row['house']]} are trumps: they beat any other suit."


def suite(**options):
    return suite_of("cards", Cards, make, TRUMPS, "cards:skill", "house")


def play(view, environment, skill, draw):
    """Wins as cheaply as it can, guesses the trump where it has no skill; else throws its lowest card away."""
    trump = environment.trump if skill else draw.choice(SUITS)
    same = [card for card in environment.hand if suit(card) == suit(environment.lead)]
    higher = [card for card in same if rank(card) > rank(environment.lead)]
    trumps = [card for card in environment.hand if suit(card) == trump and card not in same]
    if chosen := min(higher or trumps, key=rank, default=""):
        why = "is higher" if higher else "is a trump"
    else:
        chosen, why = min(environment.hand, key=rank), "is the lowest, none wins"
    said = f"{environment.house} trump {trump}; lead {environment.lead}; {chosen} {why}"
    return f"<think>{said}</think>\n<action>play {chosen}</action>"
