"""The compiled loops of memory: predict beliefs, choose channels, use symbols, read answers.

A belief is `[chain][value]`. If it is joint, chains are profiles, and all numbers sum to 1; else
chains are variables, and the two numbers of each sum to 1.

Channels come in flat arrays. A row of `blocks` describes an open block of a context:

    first class map, number of classes, first candidate, number of candidates, first answer,
    number of queries, first variable, number of variables, first place

and a row of `candidates` a channel that a block may use:

    first row in the sampler, number of symbols, first likelihood, first mixed likelihood

`class_of` has the class of each value of a joint belief. For a factored belief, `places` has the
class of each choice of the block's variables. `likely` has `[class][symbol]` of each candidate.
`mixed` has for each class the likelihoods of all symbols, and then for each query their products
with its answer.
`answers` has `[class][query]` of each block, and `weights` the weight of each query, at the same
place as its first answer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled
from tacit.privacy.mechanisms.optimal.part_tables import part_probability

Singles = NDArray[np.float32]
Whole = NDArray[np.int64]
Numbers = NDArray[np.int32]
Bits = NDArray[np.bool_]
Words = NDArray[np.uint64]

CLASS_MAP, CLASSES, CANDIDATE, CANDIDATES, ANSWER, QUERIES, VARIABLE, VARIABLES, PLACE = range(9)
ROW, SYMBOLS, LIKELY, MIXED = range(4)


@compiled
def _normalise(belief: Singles, joint: bool) -> None:
    whole = np.float32(1e-30)
    for chain in range(belief.shape[0]):
        total = np.float32(1e-30)
        for value in range(belief.shape[1]):
            total += belief[chain, value]
        whole += total
        if not joint:
            scale = np.float32(1.0) / total
            for value in range(belief.shape[1]):
                belief[chain, value] *= scale
    if joint:
        scale = np.float32(1.0) / whole
        for chain in range(belief.shape[0]):
            for value in range(belief.shape[1]):
                belief[chain, value] *= scale


@compiled
def find_cells(
    before: NDArray[np.int16],
    contexts: Numbers,
    group_of: NDArray[np.int16],
    kind_of: Whole,
    openness: NDArray[np.uint16],
    edges: NDArray[np.uint16],
    kinds: int,
    slots: int,
    slot: int,
    groups: NDArray[np.int16],
    cells: Whole,
) -> None:
    """Write the group of each row's context, and the cell of the step to it.

    A row without a window before has the group -1 before, and its cell is not used.
    """
    levels = len(edges) + 1
    for i in range(len(contexts)):
        groups[i] = group_of[contexts[i]]
        level = 0
        for edge in range(len(edges)):
            level += openness[i] >= edges[edge]
        last = kind_of[max(0, before[i])]
        here = kind_of[groups[i]]
        cells[i] = ((last * kinds + here) * levels + level) * slots + slot


@compiled
def predict(
    stored: NDArray[np.uint16],
    groups_before: NDArray[np.int16],
    groups: NDArray[np.int16],
    kind_of: Whole,
    cells: Whole,
    tables: Singles,
    start: Singles,
    weights: Singles,
    switch: float,
    joint: bool,
    beliefs: Singles,
    out: Singles,
) -> None:
    """Write the beliefs of the next window, `[row][chain][value]`, before any symbol.

    `stored` are those after the window before; as probabilities they are written to `beliefs`.
    """
    chains, size = beliefs.shape[1], beliefs.shape[2]
    for i in range(len(beliefs)):
        if groups_before[i] < 0:
            for chain in range(chains):
                for value in range(size):
                    beliefs[i, chain, value] = 0.0
                    out[i, chain, value] = start[kind_of[groups[i]], chain, value]
            continue
        cell = cells[i]
        for chain in range(chains):
            for value in range(size):
                beliefs[i, chain, value] = np.float32(stored[i, chain, value])
        _normalise(beliefs[i], joint)
        for chain in range(chains):
            table, found = tables[cell, chain], out[i, chain]
            for value in range(size):
                found[value] = 0.0
            for before in range(size):
                share, row = beliefs[i, chain, before], table[before]
                for value in range(size):
                    found[value] += share * row[value]
        if joint and chains > 1:
            for value in range(size):
                total = np.float32(0.0)
                for chain in range(chains):
                    total += out[i, chain, value]
                for chain in range(chains):
                    kept = out[i, chain, value] * np.float32(1 - switch)
                    out[i, chain, value] = kept + np.float32(switch) * weights[chain] * total


@compiled
def weigh_classes(
    belief: Singles,
    joint: bool,
    block: Whole,
    class_of: Whole,
    variables: Whole,
    places: Whole,
    prior: Singles,
) -> None:
    """Write the probability of each class of a block."""
    for number in range(block[CLASSES]):
        prior[number] = 0.0
    if joint:
        for value in range(belief.shape[1]):
            share = np.float32(0.0)
            for chain in range(belief.shape[0]):
                share += belief[chain, value]
            prior[class_of[block[CLASS_MAP] + value]] += share
        return
    for choice in range(1 << block[VARIABLES]):
        share = np.float32(1.0)
        for place in range(block[VARIABLES]):
            share *= belief[variables[block[VARIABLE] + place], (choice >> place) & 1]
        prior[places[block[PLACE] + choice]] += share


@compiled
def list_classes(
    beliefs: Singles,
    joint: bool,
    block: Whole,
    class_of: Whole,
    variables: Whole,
    places: Whole,
    found: Singles,
) -> None:
    """Write `[row][class]`: the probabilities of one block's classes."""
    for i in range(len(beliefs)):
        weigh_classes(beliefs[i], joint, block, class_of, variables, places, found[i])


@compiled
def choose_channels(
    contexts: Numbers,
    beliefs: Singles,
    joint: bool,
    first_block: Whole,
    blocks: Whole,
    candidates: Whole,
    class_of: Whole,
    variables: Whole,
    places: Whole,
    mixed: Singles,
    answers: Singles,
    weights: Singles,
    prior: Singles,
    sums: Singles,
    wanted: bool,
    chosen: Numbers,
    gains: Singles,
) -> None:
    """Choose the best candidate for each block of each row, and write what it gains.

    The gain is by how much the squared error of the queries' probabilities is expected to fall.
    Unless gains are `wanted`, those of blocks with one candidate are left out. `prior` and `sums`
    have room for the classes of any block, and for the mixed likelihoods of a class.
    """
    for i in range(len(contexts)):
        gains[i] = 0.0
        begin = first_block[contexts[i]]
        for number in range(begin, first_block[contexts[i] + 1]):
            block = blocks[number]
            if block[CANDIDATES] == 1 and not wanted:
                chosen[i, number - begin] = block[CANDIDATE]
                continue
            weigh_classes(beliefs[i], joint, block, class_of, variables, places, prior)
            classes, queries = block[CLASSES], block[QUERIES]
            base = np.float32(0.0)
            for query in range(queries):
                share = np.float32(0.0)
                for k in range(classes):
                    share += prior[k] * answers[block[ANSWER] + k * queries + query]
                base += weights[block[ANSWER] + query] * share * share
            best, most = 0, np.float32(-1.0)
            for option in range(block[CANDIDATES]):
                candidate = candidates[block[CANDIDATE] + option]
                symbols = candidate[SYMBOLS]
                width = symbols * (1 + queries)
                # The probability of each symbol, and of each query together with each symbol.
                for n in range(width):
                    sums[n] = 0.0
                for k in range(classes):
                    share, place = prior[k], candidate[MIXED] + k * width
                    row = mixed[place : place + width]
                    for n in range(width):
                        sums[n] += share * row[n]
                found = np.float32(0.0)
                for symbol in range(symbols):
                    squares = np.float32(0.0)
                    for query in range(queries):
                        share = sums[symbols * (1 + query) + symbol]
                        squares += weights[block[ANSWER] + query] * share * share
                    found += squares / (sums[symbol] + np.float32(1e-30))
                if found > most * np.float32(1.0001):
                    best, most = option, found
            chosen[i, number - begin] = block[CANDIDATE] + best
            gains[i] += max(np.float32(0.0), most - base)


@compiled
def find_rows(
    contexts: Numbers,
    silent: Bits,
    values: Words,
    joint: bool,
    first_block: Whole,
    blocks: Whole,
    candidates: Whole,
    class_of: Whole,
    variables: Whole,
    places: Whole,
    chosen: Numbers,
    rows: Whole,
    drawn_for: Whole,
) -> int:
    """Write the sampler's row for each block to draw from, and its place in `chosen`.

    Silent rows draw nothing. Return the number of draws.
    """
    one, low = np.uint64(1), np.uint64(63)
    drawn = 0
    for i in range(len(contexts)):
        if silent[i]:
            continue
        begin = first_block[contexts[i]]
        for number in range(begin, first_block[contexts[i] + 1]):
            block = blocks[number]
            if joint:
                row = class_of[block[CLASS_MAP] + np.int64(values[i, 0])]
            else:
                choice = np.int64(0)
                for place in range(block[VARIABLES]):
                    variable = np.uint64(variables[block[VARIABLE] + place])
                    bit = (values[i, variable >> np.uint64(6)] >> (variable & low)) & one
                    choice |= np.int64(bit) << place
                row = places[block[PLACE] + choice]
            rows[drawn] = candidates[chosen[i, number - begin], ROW] + row
            drawn_for[drawn] = i * chosen.shape[1] + number - begin
            drawn += 1
    return drawn


@compiled
def use_symbols(
    contexts: Numbers,
    beliefs: Singles,
    joint: bool,
    first_block: Whole,
    blocks: Whole,
    candidates: Whole,
    class_of: Whole,
    variables: Whole,
    places: Whole,
    likely: Singles,
    chosen: Numbers,
    symbols: Numbers,
    scratch: Singles,
    stored: NDArray[np.uint16],
) -> None:
    """Update the beliefs in place; a symbol of -1 says nothing. Also write them as whole numbers.

    Probabilities are stored in parts of 65535, at least one part each: no value is ever ruled out
    for good, since models err. `scratch` has room for the variables of any block.
    """
    for i in range(len(contexts)):
        begin = first_block[contexts[i]]
        for number in range(begin, first_block[contexts[i] + 1]):
            symbol = symbols[i, number - begin]
            if symbol < 0:
                continue
            block = blocks[number]
            candidate = candidates[chosen[i, number - begin]]
            first, width = candidate[LIKELY] + symbol, candidate[SYMBOLS]
            if joint:
                for value in range(beliefs.shape[2]):
                    factor = likely[first + class_of[block[CLASS_MAP] + value] * width]
                    for chain in range(beliefs.shape[1]):
                        beliefs[i, chain, value] *= factor
            else:
                for place in range(block[VARIABLES]):
                    scratch[place, 0] = scratch[place, 1] = 0.0
                for choice in range(1 << block[VARIABLES]):
                    share = likely[first + places[block[PLACE] + choice] * width]
                    for place in range(block[VARIABLES]):
                        share *= beliefs[
                            i, variables[block[VARIABLE] + place], (choice >> place) & 1
                        ]
                    for place in range(block[VARIABLES]):
                        scratch[place, (choice >> place) & 1] += share
                for place in range(block[VARIABLES]):
                    variable = variables[block[VARIABLE] + place]
                    beliefs[i, variable, 0] = scratch[place, 0]
                    beliefs[i, variable, 1] = scratch[place, 1]
        _normalise(beliefs[i], joint)
        for chain in range(beliefs.shape[1]):
            for value in range(beliefs.shape[2]):
                parts = beliefs[i, chain, value] * np.float32(65534.0) + np.float32(1.0)
                stored[i, chain, value] = np.uint16(parts)


@compiled
def read_beliefs(
    beliefs: Singles, joint: bool, sums: NDArray[np.float64], chances: NDArray[np.float64]
) -> None:
    """Write the readings of beliefs: `[row]` if they are joint, else `[row and variable]`."""
    rows, chains, size = beliefs.shape
    for i in range(rows):
        if joint:
            for reading in range(chances.shape[1]):
                chances[i, reading] = 0.0
            for value in range(size):
                share = 0.0
                for chain in range(chains):
                    share += beliefs[i, chain, value]
                for reading in range(chances.shape[1]):
                    chances[i, reading] += share * sums[value, reading]
        else:
            for chain in range(chains):
                for reading in range(chances.shape[1]):
                    chances[i * chains + chain, reading] = beliefs[i, chain, reading]


@compiled
def weigh_known_parts(
    contexts: Numbers,
    beliefs: Singles,
    truths: Singles,
    found: Singles,
) -> int:
    """Write the same as `weigh_parts` for joint beliefs in contexts whose parts are tabulated.

    `truths[context][value][part]` is 1 where a part is true; a context that is not tabulated has
    -1 everywhere. Return the number of rows with such a context.
    """
    chains, size, parts = beliefs.shape[1], beliefs.shape[2], found.shape[1]
    other = 0
    for i in range(len(contexts)):
        table, row = truths[contexts[i]], found[i]
        if table[0, 0] < 0:
            other += 1
            continue
        for part in range(parts):
            row[part] = 0.0
        for value in range(size):
            share = beliefs[i, 0, value]
            for chain in range(1, chains):
                share += beliefs[i, chain, value]
            true = table[value]
            for part in range(parts):
                row[part] += share * true[part]
    return other


@compiled
def weigh_parts(
    signals: Words,
    codes: Numbers,
    chances: NDArray[np.float64],
    cofactors: Whole,
    first_cofactor: Whole,
    views: Whole,
    first_view: Whole,
    choices: Whole,
    found: Singles,
) -> None:
    """Write `[row][part]`: the probability that each part is true; exactly 0 or 1 if decided."""
    for i in range(len(signals)):
        for part in range(found.shape[1]):
            found[i, part] = part_probability(
                part,
                signals[i],
                codes[i],
                chances,
                cofactors,
                first_cofactor,
                views,
                first_view,
                choices,
            )


@compiled
def answer_queries(
    likely: Singles,
    columns: Whole,
    queries: Whole,
    thresholds: NDArray[np.float64],
    slots: Whole,
    levels: NDArray[np.uint8],
    answers: Words,
    codes: NDArray[np.uint8],
) -> None:
    """Answer yes from each query's threshold on, and write the level of its probability.

    `likely[row][column]` has the probabilities. `answers[query][word]` has a bit for each slot,
    and `codes[query][row]` a level for each row.
    """
    one = np.uint64(1)
    last = len(levels) - 1
    for i in range(len(likely)):
        word, bit = slots[i] >> 6, np.uint64(slots[i] & 63)
        for n in range(len(columns)):
            share = likely[i, columns[n]]
            if share >= thresholds[n]:
                answers[queries[n], word] |= one << bit
            place = int(share * np.float32(last))
            place = min(last - 1, max(1, place))
            if share <= 0:
                place = 0
            elif share >= 1:
                place = last
            codes[queries[n], i] = levels[place]


@compiled
def count_steps(
    beliefs: Singles,
    after: Singles,
    predicted: Singles,
    groups_before: NDArray[np.int16],
    cells: Whole,
    slots: int,
    history: Singles,
    tables: Singles,
    first: int,
    step: int,
    steps: Singles,
) -> None:
    """Add the steps from one window to the next of every `step`-th subject.

    `predicted` is the belief before this window's symbols, and `after` with them. `history` are
    the transitions of the plan, and `tables` those in use. `steps[0]` receives what history
    predicts, and `steps[1]` what the symbols make of it; cells of all hours are one there.
    """
    chains, size = beliefs.shape[1], beliefs.shape[2]
    for i in range(first, len(beliefs), step):
        if groups_before[i] < 0:
            continue
        cell = cells[i]
        whole = cell // slots
        for chain in range(chains):
            for before in range(size):
                share = beliefs[i, chain, before]
                for value in range(size):
                    steps[0, whole, chain, before, value] += (
                        share * history[cell, chain, before, value]
                    )
                    if predicted[i, chain, value] > 0:
                        ratio = after[i, chain, value] / predicted[i, chain, value]
                        steps[1, whole, chain, before, value] += (
                            share * tables[cell, chain, before, value] * ratio
                        )


@compiled
def count_levels(codes: NDArray[np.uint8], levels: Singles) -> None:
    """Add the levels of answers `[query][subject]` to `levels[query][level]`."""
    for query in range(len(codes)):
        for i in range(codes.shape[1]):
            levels[query, codes[query, i]] += np.float32(1.0)
