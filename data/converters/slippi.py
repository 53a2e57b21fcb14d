"""Slippi replays, read by peppi-py: an episode for each of the two players.

Row t is what is known after frame t of the game, the controllers of that frame included; the targets are the player's
own controller of frame t + 1, as launch/policy.ini names them. A frame has 287 numbers:

  self, then other   60 of the character, 60 of its follower (Nana), 1 if there is one, 17 of the controller
  the game           6 flags of the tournament stages, the frame's number, from self to other along x and y, and for
                     each whether it faces the other

and ids of both: character, action state, the follower's action state. What a replay is too old to have is zero.
"""
import contextlib
import os
import sys

import numpy as np
import peppi_py

from converters.shared import Piece, Refused, Source, files_of

FRAME = 287
STAGES = {2: "fountain_of_dreams", 3: "pokemon_stadium", 8: "yoshis_story", 28: "dream_land", 31: "battlefield",
          32: "final_destination"}
BUTTONS = {"a": 0x100, "b": 0x200, "x": 0x400, "y": 0x800, "z": 0x10, "l": 0x40, "r": 0x20, "up": 0x8}  # targets
OTHER_BUTTONS = {"left": 0x1, "right": 0x2, "down": 0x4, "start": 0x1000}
IDS = {"character": 33, "state": 1024, "follower_state": 1024}  # with the sizes of their tables
HEADS = {"buttons": "bernoulli*8", "main_x": "categorical*17", "main_y": "categorical*17", "c_x": "categorical*17",
         "c_y": "categorical*17", "shoulder": "categorical*5"}


@contextlib.contextmanager
def quiet():
    """Without what a panic in Rust prints beside its exception."""
    stderr = os.dup(2)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def character(post, get):
    """The numbers of a character's state by name; `get` makes one of an array of peppi-py."""
    numbers = {"x": get(post and post.position.x), "y": get(post and post.position.y)}
    for name in ("direction", "percent", "shield", "stocks", "combo_count", "state_age", "hitlag", "airborne", "jumps"):
        numbers[name] = get(post and getattr(post, name))
    for name, field, code in (("l_cancelled", "l_cancel", 1), ("l_cancel_missed", "l_cancel", 2),
                              ("invulnerable", "hurtbox_state", 1), ("intangible", "hurtbox_state", 2)):
        numbers[name] = get(post and getattr(post, field)) == code
    velocities = post and post.velocities
    for name in ("self_x_air", "self_y", "knockback_x", "knockback_y", "self_x_ground"):
        numbers[name] = get(velocities and getattr(velocities, name))
    for byte in range(5):
        flags = get(post and post.state_flags and post.state_flags[byte]).astype(np.uint8)
        for bit in range(8):
            numbers[f"flag_{byte}_{bit}"] = flags >> bit & 1
    return numbers


def controller(pre, get):
    numbers = {"main_x": get(pre.joystick.x), "main_y": get(pre.joystick.y), "c_x": get(pre.cstick.x),
               "c_y": get(pre.cstick.y), "trigger": get(pre.triggers)}
    pressed = get(pre.buttons_physical).astype(np.uint16)
    for name, bit in {**BUTTONS, **OTHER_BUTTONS}.items():
        numbers[name] = pressed & bit > 0
    return numbers


def steps(x, low, n):
    """Places of [low, 1] as classes 0 to n - 1."""
    return np.rint((np.clip(x, low, 1) - low) / (1 - low) * (n - 1)).astype(np.float32)


class Replays(Source):
    names = ["frame", *(f"{who}_{name}" for who in ("self", "other") for name in IDS), *HEADS, "player"]
    heads, tables = HEADS, {f"{who}_{name}": (size, name.split("_")[-1])
                            for who in ("self", "other") for name, size in IDS.items()}

    def __init__(self, options):
        self.options, self.files, self.numbers = options, files_of(options.input, (".slp",)), []
        options.inputs, options.ids, options.targets = ["frame"], list(self.tables), list(HEADS)
        options.episode = "player"
        self.independent = bool(options.port or options.code)

    def labels(self, name, shape):
        return self.numbers

    def pieces(self, wanted):
        skipped = 0
        for number, path in enumerate(self.files):
            try:
                players = list(self.players(path))
            except Refused as error:
                if not self.options.skip:
                    raise Refused(f"{error} (--skip leaves such replays out)") from error
                print(f"convert.py: skipping {error}", file=sys.stderr)
                skipped += 1
                continue
            for i, columns in enumerate(players):
                yield Piece(path, 0, columns, (number + 1) / len(self.files), i == 0)
        if skipped:
            print(f"convert.py: skipped {skipped} of {len(self.files)} replays", file=sys.stderr)

    def players(self, path):
        """Columns for each player that the options ask for."""
        try:
            with quiet():
                game = peppi_py.read_slippi(path)
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as error:  # a panic in Rust is no Exception
            raise Refused(f"{path}: not a whole replay: {' '.join(str(error).split())}") from error
        people = game.start.players
        if game.frames is None or len(people) != 2 or len(game.frames.ports) != 2 or len(game.frames.id) < 2:
            raise Refused(f"{path}: has {len(people)} players and {len(game.frames.id) if game.frames else 0} frames, "
                          "not two players and two frames or more")
        # Netplay writes a frame again when it was played back from an earlier one: the last is what happened.
        numbers = np.asarray(game.frames.id)
        frames, last = np.unique(numbers[::-1], return_index=True)
        keep = len(numbers) - 1 - last
        for row in np.flatnonzero(np.diff(frames) != 1)[:1]:
            raise Refused(f"{path}: frame {frames[row]} is followed by frame {frames[row + 1]}")

        def get(array):
            if array is None:
                return np.zeros(len(keep), np.float32)
            x = array.fill_null(0).to_numpy(zero_copy_only=False)[keep].astype(np.float32)
            return np.nan_to_num(x, posinf=0, neginf=0)

        sides = [self.side(port, get) for port in game.frames.ports]
        for i, player in enumerate(people):
            if self.options.port not in (None, player.port + 1):
                continue
            code = player.netplay.code.replace("＃", "#") if player.netplay else ""
            if self.options.code and code.upper() != self.options.code.upper():
                continue
            yield self.columns(sides[i], sides[1 - i], game.start.stage, frames, i)

    def side(self, port, get):
        """Numbers, ids and controller of a player."""
        leader, follower = port.leader, port.follower
        post = follower and follower.post
        pad = controller(leader.pre, get)
        present = np.zeros(len(get(None))) if post is None else get(post.state.is_valid().cast("uint8"))
        numbers = {**character(leader.post, get),
                   **{f"follower_{name}": x for name, x in character(post, get).items()},
                   "follower": present, **{f"pad_{name}": x for name, x in pad.items()}}
        ids = {"character": get(leader.post.character), "state": get(leader.post.state),
               "follower_state": get(post and post.state)}
        return numbers, ids, pad

    def columns(self, own, other, stage, frames, player):
        numbers = {f"{who}_{name}": x for who, (side, *_) in (("self", own), ("other", other)) for name, x in side.items()}
        numbers.update({f"stage_{name}": np.full(len(frames), code == stage) for code, name in STAGES.items()})
        numbers["frame"] = frames
        for axis in "x", "y":
            numbers[f"distance_{axis}"] = other[0][axis] - own[0][axis]
        numbers["self_faces_other"] = numbers["distance_x"] * own[0]["direction"] > 0
        numbers["other_faces_self"] = numbers["distance_x"] * other[0]["direction"] < 0
        self.numbers = list(numbers)
        assert len(numbers) == FRAME
        columns = {"frame": np.stack([x.astype(np.float32) for x in numbers.values()], 1)[:-1]}
        for who, (_, ids, _) in ("self", own), ("other", other):
            columns.update({f"{who}_{name}": x[:-1] for name, x in ids.items()})
        pad = {name: x[1:] for name, x in own[2].items()}
        columns["buttons"] = np.stack([pad[name] for name in BUTTONS], 1)
        columns.update({name: steps(pad[name], -1, 17) for name in ("main_x", "main_y", "c_x", "c_y")})
        columns["shoulder"] = steps(pad["trigger"], 0, 5)
        columns["player"] = np.full(len(frames) - 1, player)
        return columns
