// As game.py.
export const ORDERS = "You find numbers. Call a tool in each message.";
export const REQUEST = "Find the number between 1 and 10.";

export class Game {
  constructor(number) {
    Object.assign(this, { number, guesses: 0, reward: 0 });
  }

  guess(number) {
    this.guesses += 1;
    if (number === this.number) {
      this.reward = 1 / this.guesses;
      return `${number} is right.`;
    }
    return `${number} is too ${number < this.number ? "low" : "high"}.`;
  }
}
