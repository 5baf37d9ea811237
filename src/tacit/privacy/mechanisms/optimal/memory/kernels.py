"""The compiled loops of memory: predict beliefs, choose channels, use symbols, read answers.

A belief is `[chain][value]`. If it is joint, chains are profiles, and all numbers sum to 1; else
chains are variables, and the two numbers of each sum to 1. Loops over the values of joint beliefs
take eight at once (`tacit.kernels.lanes`). So where there are fewer than eight, zeros follow: a
belief is `[chain][lane]` there, and so are the rows of the tables that it is multiplied with.

Channels come in flat arrays. A row of `blocks` describes an open block of a context:

    first class map, number of classes, first candidate, number of candidates, number of queries,
    first variable, number of variables, first place

and a row of `candidates` a channel that a block may use:

    first row in the sampler, number of symbols, first likelihood, first mixed likelihood

`class_of` has the class of each value of a joint belief. For a factored belief, `places` has the
class of each choice of the block's variables. `likely` has the likelihoods of each candidate:
`[symbol][lane]` for a joint belief, `[class][symbol]` for a factored one.
`mixed` has for each class the likelihoods of all symbols, and then for each query their products
with its answer and the root of its weight; each of them fills whole lanes. Of joint beliefs with
at most eight values, each value has such a row instead.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled
from tacit.kernels.lanes import (
    LANES,
    add,
    add_product,
    count,
    divide,
    load,
    multiply,
    spread,
    store,
    total,
)
from tacit.privacy.mechanisms.optimal.part_tables import part_probability

Singles = NDArray[np.float32]
Whole = NDArray[np.int64]
Numbers = NDArray[np.int32]
Bits = NDArray[np.bool_]
Words = NDArray[np.uint64]

CLASS_MAP, CLASSES, CANDIDATE, CANDIDATES, QUERIES, VARIABLE, VARIABLES, PLACE = range(8)
ROW, SYMBOLS, LIKELY, MIXED = range(4)
STEP_PARTS = 1 << 20
"""Learned steps are added up in so many parts of a step."""
WHOLE: Final = 65535
"""The number of parts of a whole, in stored probabilities and averages."""
_WORD: Final = 64


@compiled
def find_cells(
    before: NDArray[np.int16],
    contexts: Numbers,
    group_of: NDArray[np.int16],
    kind_of: Whole,
    openness: NDArray[np.uint16],
    edges: NDArray[np.uint16],
    kinds: int,
    groups: NDArray[np.int16],
    cells: Whole,
) -> None:
    """Write the group of each row's context, and the cell of the step to it, all hours alike.

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
        cells[i] = (last * kinds + here) * levels + level


@compiled
def predict_joint(
    stored: NDArray[np.uint16],
    groups_before: NDArray[np.int16],
    groups: NDArray[np.int16],
    kind_of: Whole,
    cells: Whole,
    tables: Singles,
    start: Singles,
    weights: Singles,
    switch: float,
    shares: Singles,
    out: Singles,
) -> None:
    """Write the joint beliefs of the next window, `[row][chain][lane]`, before any symbol.

    `stored` are those after the window before, `[row][chain][value]`. `tables` are the transitions
    at this time, `[cell][chain][value before][lane]`. `shares` has room for a belief.
    """
    chains, size, width = out.shape[1], stored.shape[2], out.shape[2]
    for i in range(len(out)):
        at = i * chains * width
        if groups_before[i] < 0:
            first = kind_of[groups[i]] * chains * width
            for place in range(0, chains * width, LANES):
                store(out, at + place, load(start, first + place))
            continue
        scale = np.float32(1.0) / _list_shares(stored, i, shares)
        first = cells[i] * chains * size * width
        for chain in range(chains):
            for lane in range(0, width, LANES):
                found = spread(np.float32(0.0))
                for value in range(size):
                    share = spread(shares[chain * size + value])
                    row = first + (chain * size + value) * width
                    found = add_product(found, share, load(tables, row + lane))
                store(out, at + chain * width + lane, multiply(found, spread(scale)))
        if chains > 1:
            for lane in range(0, width, LANES):
                whole = load(out, at + lane)
                for chain in range(1, chains):
                    whole = add(whole, load(out, at + chain * width + lane))
                for chain in range(chains):
                    place = at + chain * width + lane
                    kept = multiply(load(out, place), spread(np.float32(1 - switch)))
                    changed = spread(np.float32(switch) * weights[chain])
                    store(out, place, add_product(kept, changed, whole))


@compiled
def _list_shares(stored: NDArray[np.uint16], row: int, shares: Singles) -> np.float32:
    """Write a stored belief as it is, `[chain and value]`; return the sum."""
    numbers = stored.shape[1] * stored.shape[2]
    whole = np.float32(1e-30)
    if stored.shape[2] < LANES:
        for chain in range(stored.shape[1]):
            for value in range(stored.shape[2]):
                share = np.float32(stored[row, chain, value])
                shares[chain * stored.shape[2] + value] = share
                whole += share
        return whole
    lanes = spread(np.float32(0.0))
    for place in range(0, numbers, LANES):
        found = load(stored, row * numbers + place)
        store(shares, place, found)
        lanes = add(lanes, found)
    return np.float32(whole + total(lanes))


@compiled
def predict_factored(
    stored: NDArray[np.uint16],
    groups_before: NDArray[np.int16],
    groups: NDArray[np.int16],
    kind_of: Whole,
    cells: Whole,
    tables: Singles,
    start: Singles,
    out: Singles,
) -> None:
    """Do the same for factored beliefs: each variable has a step of its own."""
    for i in range(len(out)):
        for chain in range(out.shape[1]):
            if groups_before[i] < 0:
                out[i, chain, 0] = start[kind_of[groups[i]], chain, 0]
                out[i, chain, 1] = start[kind_of[groups[i]], chain, 1]
                continue
            no, yes = np.float32(stored[i, chain, 0]), np.float32(stored[i, chain, 1])
            scale = np.float32(1.0) / (no + yes)
            table = tables[cells[i], chain]
            out[i, chain, 0] = (no * table[0, 0] + yes * table[1, 0]) * scale
            out[i, chain, 1] = (no * table[0, 1] + yes * table[1, 1]) * scale


@compiled
def weigh_classes(
    belief: Singles,
    joint: bool,
    values: int,
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
        for value in range(values):
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
    values: int,
    block: Whole,
    class_of: Whole,
    variables: Whole,
    places: Whole,
    found: Singles,
) -> None:
    """Write `[row][class]`: the probabilities of one block's classes."""
    for i in range(len(beliefs)):
        weigh_classes(beliefs[i], joint, values, block, class_of, variables, places, found[i])


@compiled
def choose_channels(
    contexts: Numbers,
    beliefs: Singles,
    joint: bool,
    values: int,
    first_block: Whole,
    blocks: Whole,
    candidates: Whole,
    class_of: Whole,
    variables: Whole,
    places: Whole,
    mixed: Singles,
    prior: Singles,
    sums: Singles,
    wanted: bool,
    chosen: Numbers,
    gains: Singles,
) -> None:
    """Choose the best candidate for each block of each row, and write what it gains.

    The gain is by how much the squared error of the queries' probabilities is expected to fall.
    Unless gains are `wanted`, they are left out. `prior` and `sums` have room for the classes and
    for the queries of any block.
    """
    none = spread(np.float32(0.0))
    for i in range(len(contexts)):
        gains[i] = 0.0
        begin = first_block[contexts[i]]
        for number in range(begin, first_block[contexts[i] + 1]):
            block = blocks[number]
            if block[CANDIDATES] == 1 and not wanted:
                chosen[i, number - begin] = block[CANDIDATE]
                continue
            if joint and values <= LANES:
                classes = values
                _add_chains(beliefs, i, prior)
            else:
                classes = block[CLASSES]
                weigh_classes(beliefs[i], joint, values, block, class_of, variables, places, prior)
            best, most = 0, np.float32(-1.0)
            for option in range(block[CANDIDATES]):
                candidate = candidates[block[CANDIDATE] + option]
                symbols = (candidate[SYMBOLS] + LANES - 1) // LANES * LANES
                width = symbols * (1 + block[QUERIES])
                found = np.float32(0.0)
                for lane in range(0, symbols, LANES):
                    # The probability of each symbol, and of each query together with each symbol.
                    chances, squares = spread(np.float32(1e-30)), none
                    first = candidate[MIXED] + lane
                    for k in range(classes):
                        share = spread(prior[k])
                        chances = add_product(chances, share, load(mixed, first + k * width))
                    for query in range(block[QUERIES]):
                        first += symbols
                        both = none
                        for k in range(classes):
                            share = spread(prior[k])
                            both = add_product(both, share, load(mixed, first + k * width))
                        squares = add_product(squares, both, both)
                        if wanted and option == 0:
                            before = sums[query] if lane else np.float32(0.0)
                            sums[query] = before + total(both)
                    found += total(divide(squares, chances))
                if found > most * np.float32(1.0001):
                    best, most = option, found
            chosen[i, number - begin] = block[CANDIDATE] + best
            if wanted:
                # Without a symbol, what is added up over all symbols is known.
                base = np.float32(0.0)
                for query in range(block[QUERIES]):
                    base += sums[query] * sums[query]
                gains[i] += max(np.float32(0.0), most - base)


@compiled
def _add_chains(beliefs: Singles, row: int, shares: Singles) -> None:
    """Write the probability of each value of a joint belief, whatever the profile."""
    chains, width = beliefs.shape[1], beliefs.shape[2]
    at = row * chains * width
    for lane in range(0, width, LANES):
        whole = load(beliefs, at + lane)
        for chain in range(1, chains):
            whole = add(whole, load(beliefs, at + chain * width + lane))
        store(shares, lane, whole)


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
def place_symbols(drawn: Numbers, places: Whole, symbols: Numbers) -> None:
    """Write the drawn symbols to their places."""
    for i in range(len(drawn)):
        symbols[places[i]] = drawn[i]


@compiled
def use_symbols_jointly(
    contexts: Numbers,
    predicted: Singles,
    first_block: Whole,
    candidates: Whole,
    likely: Singles,
    chosen: Numbers,
    symbols: Numbers,
    beliefs: Singles,
    stored: NDArray[np.uint16],
) -> None:
    """Write the joint beliefs with the symbols; one of -1 says nothing. Also store them.

    Probabilities are stored in parts of 65535, at least one part each: no value is ever ruled out
    for good, since models err.
    """
    chains, width, size = beliefs.shape[1], beliefs.shape[2], stored.shape[2]
    numbers = chains * width
    for i in range(len(contexts)):
        blocks = first_block[contexts[i] + 1] - first_block[contexts[i]]
        whole = spread(np.float32(0.0))
        for lane in range(0, width, LANES):
            factor = spread(np.float32(1.0))
            for number in range(blocks):
                symbol = symbols[i, number]
                if symbol >= 0:
                    first = candidates[chosen[i, number], LIKELY] + symbol * width
                    factor = multiply(factor, load(likely, first + lane))
            for place in range(i * numbers + lane, (i + 1) * numbers, width):
                found = multiply(load(predicted, place), factor)
                store(beliefs, place, found)
                whole = add(whole, found)
        scale = spread(np.float32(1.0) / (np.float32(1e-30) + total(whole)))
        for place in range(i * numbers, (i + 1) * numbers, LANES):
            found = multiply(load(beliefs, place), scale)
            store(beliefs, place, found)
            if size >= LANES:
                parts = multiply(found, spread(np.float32(WHOLE - 1)))
                store(stored, place, add(parts, spread(np.float32(1.0))))
        if size < LANES:
            for chain in range(chains):
                for value in range(size):
                    part = beliefs[i, chain, value] * np.float32(WHOLE - 1) + np.float32(1.0)
                    stored[i, chain, value] = np.uint16(part)


@compiled
def use_symbols_by_variable(
    contexts: Numbers,
    beliefs: Singles,
    first_block: Whole,
    blocks: Whole,
    candidates: Whole,
    variables: Whole,
    places: Whole,
    likely: Singles,
    chosen: Numbers,
    symbols: Numbers,
    scratch: Singles,
    stored: NDArray[np.uint16],
) -> None:
    """Do the same for factored beliefs, in place. `scratch` has room for a block's variables."""
    for i in range(len(contexts)):
        begin = first_block[contexts[i]]
        for number in range(begin, first_block[contexts[i] + 1]):
            symbol = symbols[i, number - begin]
            if symbol < 0:
                continue
            block = blocks[number]
            candidate = candidates[chosen[i, number - begin]]
            first, width = candidate[LIKELY] + symbol, candidate[SYMBOLS]
            for place in range(block[VARIABLES]):
                scratch[place, 0] = scratch[place, 1] = 0.0
            for choice in range(1 << block[VARIABLES]):
                share = likely[first + places[block[PLACE] + choice] * width]
                for place in range(block[VARIABLES]):
                    share *= beliefs[i, variables[block[VARIABLE] + place], (choice >> place) & 1]
                for place in range(block[VARIABLES]):
                    scratch[place, (choice >> place) & 1] += share
            for place in range(block[VARIABLES]):
                variable = variables[block[VARIABLE] + place]
                beliefs[i, variable, 0] = scratch[place, 0]
                beliefs[i, variable, 1] = scratch[place, 1]
        for chain in range(beliefs.shape[1]):
            whole = np.float32(1e-30) + beliefs[i, chain, 0] + beliefs[i, chain, 1]
            for value in range(2):
                beliefs[i, chain, value] /= whole
                part = beliefs[i, chain, value] * np.float32(WHOLE - 1) + np.float32(1.0)
                stored[i, chain, value] = np.uint16(part)


@compiled
def average_openness(
    contexts: Numbers,
    is_open: Bits,
    before: NDArray[np.uint16],
    decay: float,
    after: NDArray[np.uint16],
) -> None:
    """Write the running averages after a window."""
    for i in range(len(contexts)):
        opened = (1 - decay) * WHOLE if is_open[contexts[i]] else 0.0
        after[i] = np.uint16(before[i] * decay + opened)


@compiled
def read_beliefs(
    beliefs: Singles, joint: bool, sums: NDArray[np.float64], chances: NDArray[np.float64]
) -> None:
    """Write the readings of beliefs: `[row]` if they are joint, else `[row and variable]`."""
    rows, chains = beliefs.shape[:2]
    for i in range(rows):
        if joint:
            for reading in range(chances.shape[1]):
                chances[i, reading] = 0.0
            for value in range(len(sums)):
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
    shares: Singles,
    begin: int,
    found: Singles,
) -> int:
    """Write the same as `weigh_parts` for joint beliefs in contexts whose parts are tabulated.

    `truths[context][value][part]` is 1 where a part is true, and zeros fill the last lanes; a
    context that is not tabulated has -1 everywhere. Return the number of rows with such a context.
    `shares` has room for all values.
    """
    size, parts = truths.shape[1], truths.shape[2]
    other = 0
    for i in range(len(contexts)):
        if truths[contexts[i], 0, 0] < 0:
            other += 1
            continue
        _add_chains(beliefs, i, shares)
        first = contexts[i] * size * parts
        for lane in range(0, parts, LANES):
            likely = spread(np.float32(0.0))
            for value in range(size):
                true = load(truths, first + value * parts + lane)
                likely = add_product(likely, spread(shares[value]), true)
            store(found, i * found.shape[1] + begin + lane, likely)
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
    rows: Whole,
    begin: int,
    found: Singles,
) -> None:
    """Write the probability that each part is true; exactly 0 or 1 if decided.

    Those of row `i` go to `found[rows[i]]`, from column `begin` on.
    """
    for i in range(len(rows)):
        for part in range(len(first_cofactor) - 1):
            found[rows[i], begin + part] = part_probability(
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
    begin_word: int,
    end_word: int,
    terms: Whole,
    first_term: Whole,
    every: Bits,
    queries: Whole,
    thresholds: NDArray[np.float64],
    levels: NDArray[np.uint8],
    shares: Singles,
    places: Numbers,
    answers: Words,
    codes: NDArray[np.uint8],
) -> None:
    """Answer yes from each query's threshold on, and write the level of its probability.

    `likely[row][column]` has the probabilities of parts; `terms` the columns of each query, and
    `every` whether all of them must be true. Different terms count as independent.
    `answers[query][word]` has a bit for each row, and `codes[query][row]` a level; they are
    written for the rows of some words.
    `shares` and `places` have room for the rows of a word.
    """
    last = np.float32(len(levels) - 1)
    for word in range(begin_word, end_word):
        first = word * _WORD
        rows = min(_WORD, len(likely) - first)
        for n in range(len(queries)):
            begin, end = first_term[n], first_term[n + 1]
            for j in range(rows):
                shares[j] = likely[first + j, terms[begin]]
            if end - begin > 1 and every[n]:
                for term in range(begin + 1, end):
                    for j in range(rows):
                        shares[j] *= likely[first + j, terms[term]]
            elif end - begin > 1:
                for j in range(rows):
                    none = np.float32(1.0)
                    for term in range(begin, end):
                        none *= np.float32(1.0) - likely[first + j, terms[term]]
                    shares[j] = np.float32(1.0) - none
            threshold = np.float32(thresholds[n])
            if threshold < thresholds[n]:
                threshold = np.nextafter(threshold, np.float32(2.0))
            bits = np.uint64(0)
            for j in range(rows):
                bits |= np.uint64(shares[j] >= threshold) << np.uint64(j)
            answers[queries[n], word] = bits
            for j in range(rows):
                # The first and the last level are for what is certain.
                place = np.int32(shares[j] * last)
                place = min(np.int32(last - 1), max(np.int32(1), place))
                place = np.int32(0) if shares[j] <= 0 else place
                places[j] = np.int32(last) if shares[j] >= 1 else place
            for j in range(rows):
                codes[queries[n], first + j] = levels[places[j]]


@compiled
def count_steps(
    stored: NDArray[np.uint16],
    after: Singles,
    predicted: Singles,
    groups_before: NDArray[np.int16],
    cells: Whole,
    tables: Singles,
    joint: bool,
    counted: Bits,
    shares: Singles,
    ratios: Singles,
    starts: Whole,
    steps: Whole,
) -> None:
    """Add the steps from one window to the next of the subjects that are counted.

    `stored` is the belief after the window before, `predicted` that before this window's symbols,
    and `after` with them. `tables` are the transitions in use. `starts[cell][chain][value]`
    receives how often a value was there before, and `steps[cell][chain][value before][value]` the
    steps from it as the symbols have them. Both are added up in whole parts of `STEP_PARTS`, so
    that the order of subjects does not matter. `shares` and `ratios` have room for a belief.
    """
    chains, size, width = stored.shape[1], stored.shape[2], after.shape[2]
    for i in range(len(stored)):
        if groups_before[i] < 0 or not counted[i]:
            continue
        cell = cells[i]
        scale = np.float32(STEP_PARTS) / _list_shares(stored, i, shares)
        for chain in range(chains):
            if not joint:
                scale = np.float32(STEP_PARTS) / (shares[2 * chain] + shares[2 * chain + 1])
            for lane in range(0, size if size >= LANES else 0, LANES):
                found = multiply(load(shares, chain * size + lane), spread(scale))
                store(shares, chain * size + lane, found)
                count(starts, (cell * chains + chain) * size + lane, found)
                place = (i * chains + chain) * width + lane
                alone = add(load(predicted, place), spread(np.float32(1e-30)))
                store(ratios, chain * width + lane, divide(load(after, place), alone))
            for value in range(size if size < LANES else 0):
                shares[chain * size + value] *= scale
                starts[cell, chain, value] += np.int64(shares[chain * size + value])
                likely = predicted[i, chain, value] + np.float32(1e-30)
                ratios[chain * width + value] = after[i, chain, value] / likely
        row = cell * chains * size * size
        for chain in range(chains):
            for before in range(size):
                share = shares[chain * size + before]
                if size < LANES:
                    for value in range(size):
                        step = share * tables[cell, chain, before, value]
                        step *= ratios[chain * width + value]
                        steps[cell, chain, before, value] += np.int64(step)
                else:
                    for lane in range(0, size, LANES):
                        ratio = load(ratios, chain * width + lane)
                        used = multiply(multiply(spread(share), ratio), load(tables, row + lane))
                        count(steps, row + lane, used)
                row += size


@compiled
def fold_steps(
    starts: Whole,
    new: Whole,
    history: Singles,
    forget: np.float32,
    steps: Singles,
    found: Singles,
) -> None:
    """Add what was counted to the steps before, of which some are forgotten; count from 0 again.

    `steps[0]` is what history predicts, and `steps[1]` what the symbols make of it.
    """
    part = np.float32(1.0) / np.float32(STEP_PARTS)
    cells, chains, size = starts.shape
    before, after = steps.reshape(-1), found.reshape(-1)
    for i in range(len(before)):
        after[i] = before[i] * forget
    for cell in range(cells):
        for chain in range(chains):
            for last in range(size):
                share = np.float32(starts[cell, chain, last]) * part
                if share == 0:
                    continue
                starts[cell, chain, last] = 0
                for value in range(size):
                    used = np.float32(new[cell, chain, last, value]) * part
                    found[0, cell, chain, last, value] += share * history[cell, chain, last, value]
                    found[1, cell, chain, last, value] += used
                    new[cell, chain, last, value] = 0


@compiled
def count_levels(codes: NDArray[np.uint8], counted: Bits, levels: Whole) -> None:
    """Add the levels of answers `[query][subject]` to `levels[query][level]`."""
    for query in range(len(codes)):
        for i in range(codes.shape[1]):
            if counted[i]:
                levels[query, codes[query, i]] += 1
