"""The compiled loops of memory: predict beliefs, choose channels, use symbols, read answers.

A belief is `[chain][value]`. If it is joint, chains are profiles, and all numbers sum to 1; else
chains are variables, and the two numbers of each sum to 1. Loops over the values of joint beliefs
take eight at once (`tacit.kernels.lanes`). So where there are fewer than eight, zeros follow: a
belief is `[chain][lane]` there, and so are the rows of the tables that it is multiplied with.
Chains of at most eight values stay in registers: they have kernels of their own, several times as
fast. `advance_eight` takes all steps of a window for 64 subjects at a time.

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
at most eight values, each lane has such a row instead.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import inlined, lean
from tacit.kernels.lanes import (
    LANES,
    Lanes,
    add,
    add_product,
    add_rows,
    add_table,
    at_least,
    count,
    count_rows,
    divide,
    find_one,
    load,
    multiply,
    select,
    spread,
    store,
    subtract,
    total,
    total_rows,
    transpose,
)
from tacit.privacy.mechanisms.optimal.part_tables import part_probability
from tacit.privacy.sampling import decide

Singles = NDArray[np.float32]
Whole = NDArray[np.int64]
Octets = NDArray[np.uint8]
Parts = NDArray[np.uint16]
Numbers = NDArray[np.int32]
Bits = NDArray[np.bool_]
Words = NDArray[np.uint64]

CLASS_MAP, CLASSES, CANDIDATE, CANDIDATES, QUERIES, VARIABLE, VARIABLES, PLACE = range(8)
ROW, SYMBOLS, LIKELY, MIXED = range(4)
NOTHING: Final = -1
"""Instead of a row: nothing is drawn in a context."""
SEVERAL: Final = -2
"""Instead of a row: a context has several blocks, or channels to choose from."""
STEP_PARTS = 1 << 20
"""Learned steps are added up in so many parts of a step."""
WHOLE: Final = 65535
"""The number of parts of a whole, in stored probabilities and averages."""
UNKNOWN: Final = 255
"""In a table of truths: the context is not tabulated."""
_WORD: Final = 64


@inlined
def _find_cell(
    before: int, here: int, openness: int, kind_of: Whole, kinds: int, edges: NDArray[np.uint16]
) -> int:
    """Return the cell of the step between two groups of contexts, all hours alike."""
    level = 0
    for edge in range(len(edges)):
        level += openness >= edges[edge]
    kind = int(kind_of[max(0, before)]) * kinds + int(kind_of[here])
    return kind * (len(edges) + 1) + level


@lean
def predict_joint(
    stored: NDArray[np.uint16],
    openness: NDArray[np.uint16],
    groups_before: NDArray[np.int16],
    contexts: Numbers,
    group_of: NDArray[np.int16],
    kind_of: Whole,
    kinds: int,
    edges: NDArray[np.uint16],
    tables: Singles,
    start: Singles,
    weights: Singles,
    switch: float,
    first_block: Whole,
    blocks: Whole,
    is_choice: Bits,
    shares: Singles,
    groups: NDArray[np.int16],
    cells: Whole,
    out: Singles,
    chosen: Numbers,
    choosing: Whole,
) -> int:
    """Write the joint beliefs of the next window before any symbol.

    `stored` are the beliefs after the window before, `[row][chain][value]`, and `out` those of the
    next, `[row][chain][lane]`. `tables` are the transitions at this time,
    `[cell][chain][value before][lane]`. A row without a window before has the group -1 before; its
    cell is not used. `shares` has room for a belief.

    The first candidate of each block is `chosen`. The rows of contexts that are a choice are
    listed in `choosing`, for `choose_channels`; return their number.
    """
    chains, size, width = out.shape[1], stored.shape[2], out.shape[2]
    waiting = 0
    for i in range(len(contexts)):
        context = contexts[i]
        group = group_of[context]
        cell = _find_cell(groups_before[i], group, openness[i], kind_of, kinds, edges)
        groups[i], cells[i] = group, cell
        at = i * chains * width
        if groups_before[i] < 0:
            first = kind_of[group] * chains * width
            for place in range(0, chains * width, LANES):
                store(out, at + place, load(start, first + place))
        else:
            scale = np.float32(1.0) / _list_shares(stored, i, shares)
            first = cell * chains * size * width
            for chain in range(chains):
                for lane in range(0, width, LANES):
                    found = spread(np.float32(0.0))
                    for value in range(size):
                        share = spread(shares[chain * size + value])
                        row = first + (chain * size + value) * width
                        found = add_product(found, share, load(tables, row + lane))
                    store(out, at + chain * width + lane, multiply(found, spread(scale)))
            for lane in range(0, width if chains > 1 else 0, LANES):
                _switch_profiles(at + lane, _add_chains(out, i, lane), weights, switch, out)
        begin = first_block[context]
        for number in range(begin, first_block[context + 1]):
            chosen[i, number - begin] = blocks[number, CANDIDATE]
        choosing[waiting] = i
        waiting += is_choice[context]
    return waiting


@lean
def predict_few(
    stored: NDArray[np.uint16],
    openness: NDArray[np.uint16],
    groups_before: NDArray[np.int16],
    contexts: Numbers,
    group_of: NDArray[np.int16],
    kind_of: Whole,
    kinds: int,
    edges: NDArray[np.uint16],
    tables: Singles,
    start: Singles,
    weights: Singles,
    switch: float,
    first_block: Whole,
    blocks: Whole,
    is_choice: Bits,
    candidates: Whole,
    mixed: Singles,
    wanted: bool,
    sums: Singles,
    room: Singles,
    groups: NDArray[np.int16],
    cells: Whole,
    out: Singles,
    chosen: Numbers,
    gains: Singles,
) -> None:
    """Do the same for chains of at most eight values, and choose channels, too.

    `room` has space for a chain.
    """
    for i in range(len(contexts)):
        context = np.uint64(contexts[i])
        group = group_of[context]
        cell = _find_cell(groups_before[i], group, openness[i], kind_of, kinds, edges)
        groups[i], cells[i] = group, cell
        kind = kind_of[group] if groups_before[i] < 0 else -1
        belief = _predict_few(
            i,
            kind,
            cell,
            stored.shape[1],
            stored.shape[2],
            stored,
            tables,
            start,
            weights,
            switch,
            room,
            i,
            out,
        )
        gains[i] = _choose_few(
            context,
            belief,
            first_block,
            blocks,
            is_choice,
            candidates,
            mixed,
            sums,
            wanted,
            chosen[i],
        )


@inlined
def _predict_few(
    row: int,
    kind: int,
    cell: int,
    chains: int,
    size: int,
    stored: NDArray[np.uint16],
    tables: Singles,
    start: Singles,
    weights: Singles,
    switch: float,
    room: Singles,
    place: int,
    out: Singles,
) -> Lanes:
    """Write the next belief of a row to a place; return its sum over profiles.

    If `kind` is not -1, there was no window before, and this is the kind of the context.
    """
    none, at = spread(np.float32(0.0)), place * chains * LANES
    if kind >= 0:
        whole = none
        for lane in range(0, chains * LANES, LANES):
            found = load(start, kind * chains * LANES + lane)
            store(out, at + lane, found)
            whole = found if chains == 1 else add(whole, found)
        return whole
    whole = none
    for chain in range(chains):
        whole = add(whole, _load_stored(row, chain, chains, size, stored, room))
    scale = _invert(spread(total(whole)))
    whole = none
    for chain in range(chains):
        first = (cell * chains + chain) * size * LANES
        before = _load_stored(row, chain, chains, size, stored, room)
        found = multiply(_add_some_rows(before, size, tables, first, room), scale)
        store(out, at + chain * LANES, found)
        whole = found if chains == 1 else add(whole, found)
    if chains > 1:
        _switch_profiles(at, whole, weights, switch, out)
        whole = none
        for chain in range(chains):
            whole = add(whole, load(out, at + chain * LANES))
    return whole


@inlined
def _add_some_rows(
    shares: Lanes, size: int, table: NDArray[Any], first: int, room: Singles
) -> Lanes:
    """Return the sum of so many rows of a table, each as often as its lane says."""
    if size == LANES:
        return add_table(shares, table, first)
    store(room, 0, shares)
    found = spread(np.float32(0.0))
    for value in range(size):
        found = add_product(found, spread(room[value]), load(table, first + value * LANES))
    return found


@inlined
def _load_stored(
    row: int, chain: int, chains: int, size: int, stored: NDArray[np.uint16], room: Singles
) -> Lanes:
    """Return the stored numbers of a chain; zeros fill lanes."""
    if size == LANES:
        return load(stored, (row * chains + chain) * LANES)
    for value in range(size):
        room[value] = np.float32(stored[row, chain, value])
    for value in range(size, LANES):
        room[value] = np.float32(0.0)
    return load(room, 0)


@inlined
def _choose_few(
    context: np.uint64,
    belief: Lanes,
    first_block: Whole,
    blocks: Whole,
    is_choice: Bits,
    candidates: Whole,
    mixed: Singles,
    sums: Singles,
    wanted: bool,
    chosen: Numbers,
) -> np.float32:
    """Choose the candidate of each block of a context by a belief; return what they gain."""
    gains = np.float32(0.0)
    begin, end = first_block[context], first_block[context + np.uint64(1)]
    if is_choice[context]:
        for number in range(begin, end):
            best, gain = _choose_channel(
                True, belief, sums, number, blocks, candidates, mixed, sums, wanted
            )
            chosen[number - begin] = best
            gains += gain
        return gains
    for number in range(begin, end):
        chosen[np.uint64(number - begin)] = blocks[np.uint64(number), CANDIDATE]
    return gains


@inlined
def _switch_profiles(
    at: int, whole: Lanes, weights: Singles, switch: float, beliefs: Singles
) -> None:
    """Let profiles change in eight values of a belief; `whole` is their sum over all profiles."""
    width = beliefs.shape[2]
    for chain in range(len(weights)):
        place = at + chain * width
        kept = multiply(load(beliefs, place), spread(np.float32(1 - switch)))
        changed = spread(np.float32(switch) * weights[chain])
        store(beliefs, place, add_product(kept, changed, whole))


@inlined
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


@lean
def predict_factored(
    stored: NDArray[np.uint16],
    openness: NDArray[np.uint16],
    groups_before: NDArray[np.int16],
    contexts: Numbers,
    group_of: NDArray[np.int16],
    kind_of: Whole,
    kinds: int,
    edges: NDArray[np.uint16],
    tables: Singles,
    start: Singles,
    first_block: Whole,
    blocks: Whole,
    is_choice: Bits,
    groups: NDArray[np.int16],
    cells: Whole,
    out: Singles,
    chosen: Numbers,
    choosing: Whole,
) -> int:
    """Do the same for factored beliefs: each variable has a step of its own."""
    waiting = 0
    for i in range(len(contexts)):
        context = contexts[i]
        group = group_of[context]
        cell = _find_cell(groups_before[i], group, openness[i], kind_of, kinds, edges)
        groups[i], cells[i] = group, cell
        for chain in range(out.shape[1]):
            if groups_before[i] < 0:
                out[i, chain, 0] = start[kind_of[group], chain, 0]
                out[i, chain, 1] = start[kind_of[group], chain, 1]
                continue
            no, yes = np.float32(stored[i, chain, 0]), np.float32(stored[i, chain, 1])
            scale = np.float32(1.0) / (no + yes)
            for value in range(2):
                moved = no * tables[cell, chain, 0, value] + yes * tables[cell, chain, 1, value]
                out[i, chain, value] = moved * scale
        begin = first_block[context]
        for number in range(begin, first_block[context + 1]):
            chosen[i, number - begin] = blocks[number, CANDIDATE]
        choosing[waiting] = i
        waiting += is_choice[context]
    return waiting


@inlined
def _weigh_values(
    row: int,
    beliefs: Singles,
    values: int,
    block: int,
    blocks: Whole,
    class_of: Whole,
    prior: Singles,
) -> None:
    """Write the probability of each class of a block, by the joint belief of a row."""
    for number in range(blocks[block, CLASSES]):
        prior[number] = 0.0
    for value in range(values):
        share = np.float32(0.0)
        for chain in range(beliefs.shape[1]):
            share += beliefs[row, chain, value]
        prior[class_of[blocks[block, CLASS_MAP] + value]] += share


@inlined
def _weigh_choices(
    row: int,
    beliefs: Singles,
    block: int,
    blocks: Whole,
    variables: Whole,
    places: Whole,
    prior: Singles,
) -> None:
    """Do the same by a factored belief."""
    for number in range(blocks[block, CLASSES]):
        prior[number] = 0.0
    for choice in range(1 << blocks[block, VARIABLES]):
        share = np.float32(1.0)
        for place in range(blocks[block, VARIABLES]):
            variable = variables[blocks[block, VARIABLE] + place]
            share *= beliefs[row, variable, (choice >> place) & 1]
        prior[places[blocks[block, PLACE] + choice]] += share


@lean
def list_classes(
    beliefs: Singles,
    joint: bool,
    values: int,
    block: int,
    blocks: Whole,
    class_of: Whole,
    variables: Whole,
    places: Whole,
    found: Singles,
) -> None:
    """Write `[row][class]`: the probabilities of one block's classes."""
    for i in range(len(beliefs)):
        if joint:
            _weigh_values(i, beliefs, values, block, blocks, class_of, found[i])
        else:
            _weigh_choices(i, beliefs, block, blocks, variables, places, found[i])


@lean
def choose_channels(
    rows: Whole,
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
    wanted: bool,
    shares: Singles,
    sums: Singles,
    chosen: Numbers,
    gains: Singles,
) -> None:
    """Choose the best candidate for each block of some rows.

    If `wanted`, write what it gains: by how much the squared error of the queries' probabilities
    is expected to fall. `shares` has room for the classes of any block, and `sums` for its queries.
    """
    none = spread(np.float32(0.0))
    for i in rows:
        begin = first_block[contexts[i]]
        for number in range(begin, first_block[contexts[i] + 1]):
            if wanted or blocks[number, CANDIDATES] > 1:
                if joint:
                    _weigh_values(i, beliefs, values, number, blocks, class_of, shares)
                else:
                    _weigh_choices(i, beliefs, number, blocks, variables, places, shares)
                best, gain = _choose_channel(
                    False, none, shares, number, blocks, candidates, mixed, sums, wanted
                )
                chosen[i, number - begin] = best
                gains[i] += gain


@inlined
def _choose_channel(
    few: bool,
    by_lane: Lanes,
    by_class: Singles,
    block: int,
    blocks: Whole,
    candidates: Whole,
    mixed: Singles,
    sums: Singles,
    wanted: bool,
) -> tuple[int, np.float32]:
    """Return the best candidate of a row's block, and what it gains; 0 unless that is wanted.

    The belief is given by lane if there are few values, else by class.
    """
    none, place = spread(np.float32(0.0)), np.uint64(block)
    queries, classes = blocks[place, QUERIES], blocks[place, CLASSES]
    first_candidate = blocks[place, CANDIDATE]
    best, most = first_candidate, np.float32(-1.0)
    if not wanted and blocks[place, CANDIDATES] == 1:
        return first_candidate, np.float32(0.0)
    for candidate in range(first_candidate, first_candidate + blocks[place, CANDIDATES]):
        number = np.uint64(candidate)
        symbols = (candidates[number, SYMBOLS] + LANES - 1) // LANES * LANES
        width = symbols * (1 + queries)
        found = np.float32(0.0)
        for lane in range(0, symbols, LANES):
            # The probability of each symbol, and of each query together with each symbol.
            first = candidates[number, MIXED] + lane
            chances = spread(np.float32(1e-30))
            chances = _mix(chances, few, by_lane, by_class, classes, mixed, first, width)
            squares = none
            for query in range(queries):
                first += symbols
                both = _mix(none, few, by_lane, by_class, classes, mixed, first, width)
                squares = add_product(squares, both, both)
                if wanted and candidate == first_candidate:
                    before = sums[query] if lane else np.float32(0.0)
                    sums[query] = before + total(both)
            found += total(divide(squares, chances))
        better = found > most * np.float32(1.0001)
        best = candidate if better else best
        most = found if better else most
    gain = np.float32(0.0)
    if wanted:
        # Without a symbol, what is added up over all symbols is known.
        base = np.float32(0.0)
        for query in range(queries):
            base += sums[query] * sums[query]
        gain = max(gain, most - base)
    return best, gain


@inlined
def _mix(
    before: Lanes,
    few: bool,
    by_lane: Lanes,
    by_class: Singles,
    classes: int,
    mixed: Singles,
    first: int,
    width: int,
) -> Lanes:
    """Add the rows of a table, `width` apart, each as often as its lane or class is likely."""
    if few:
        return add_rows(before, by_lane, mixed, first, width)
    for k in range(classes):
        before = add_product(before, spread(by_class[k]), load(mixed, first + k * width))
    return before


@inlined
def _add_chains(beliefs: Singles, row: int, lane: int = 0) -> Lanes:
    """Return the probabilities of eight values of a joint belief, whatever the profile."""
    chains, width = beliefs.shape[1], beliefs.shape[2]
    at = row * chains * width + lane
    whole = load(beliefs, at)
    for chain in range(1, chains):
        whole = add(whole, load(beliefs, at + chain * width))
    return whole


@lean
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
            if joint:
                row = class_of[blocks[number, CLASS_MAP] + np.int64(values[i, 0])]
            else:
                block = blocks[number]
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


@lean
def place_symbols(drawn: Numbers, places: Whole, symbols: Numbers) -> None:
    """Write the drawn symbols to their places."""
    for i in range(len(drawn)):
        symbols[places[i]] = drawn[i]


@lean
def use_symbols_jointly(
    contexts: Numbers,
    predicted: Singles,
    first_block: Whole,
    candidates: Whole,
    likely: Singles,
    chosen: Numbers,
    symbols: Numbers,
    openness: NDArray[np.uint16],
    decay: float,
    truths: Octets,
    begin: int,
    shares: Singles,
    beliefs: Singles,
    stored: NDArray[np.uint16],
    openness_after: NDArray[np.uint16],
    parts: Parts,
) -> int:
    """Write the joint beliefs with the symbols; one of -1 says nothing. Store and read them too.

    Probabilities are stored in parts of 65535, at least one part each: no value is ever ruled out
    for good, since models err.

    The probabilities of a component's parts go to `parts[row]`, from column `begin` on.
    `truths[context][block][value][lane]` is 1 where a part is true, eight parts to a block, and
    zeros fill the last lanes; a context that is not tabulated has `UNKNOWN` everywhere. Return the
    number of rows with such a context. `shares` has room for all values.
    """
    other = 0
    for i in range(len(contexts)):
        context = contexts[i]
        blocks = first_block[context + 1] - first_block[context]
        openness_after[i] = _average(openness[i], blocks > 0, decay)
        _use_symbols(i, blocks, predicted, candidates, likely, chosen, symbols, beliefs, stored)
        if truths[context, 0, 0, 0] == UNKNOWN:
            other += 1
        else:
            for lane in range(0, beliefs.shape[2], LANES):
                store(shares, lane, _add_chains(beliefs, i, lane))
            number, size = truths.shape[1], truths.shape[2]
            for block in range(number):
                true = spread(np.float32(0.0))
                first = (context * number + block) * size * LANES
                for value in range(size):
                    row = load(truths, first + value * LANES)
                    true = add_product(true, spread(shares[value]), row)
                store(parts, i * parts.shape[1] + begin + block * LANES, _state(true))
    return other


@lean
def use_symbols_of_few(
    contexts: Numbers,
    predicted: Singles,
    first_block: Whole,
    candidates: Whole,
    likely: Singles,
    chosen: Numbers,
    symbols: Numbers,
    openness: NDArray[np.uint16],
    decay: float,
    truths: Octets,
    begin: int,
    room: Singles,
    beliefs: Singles,
    stored: NDArray[np.uint16],
    openness_after: NDArray[np.uint16],
    parts: Parts,
) -> int:
    """Do the same for chains of at most eight values; `room` has space for a chain."""
    other = 0
    for i in range(len(contexts)):
        context = np.uint64(contexts[i])
        blocks = first_block[context + np.uint64(1)] - first_block[context]
        openness_after[i] = _average(openness[i], blocks > 0, decay)
        factor = spread(np.float32(1.0))
        for number in range(blocks):
            symbol = symbols[i, number]
            if symbol >= 0:
                first = candidates[np.uint64(chosen[i, number]), LIKELY] + symbol * LANES
                factor = multiply(factor, load(likely, first))
        shares = _use_factor(
            factor, i, i, stored.shape[1], stored.shape[2], predicted, room, beliefs, stored
        )
        other += not _read_few(context, shares, stored.shape[2], truths, room, begin, i, parts)
    return other


@inlined
def _invert(sums: Lanes) -> Lanes:
    """Return what makes numbers with these sums add up to one."""
    return divide(spread(np.float32(1.0)), add(sums, spread(np.float32(1e-30))))


@inlined
def _invert_sums(rows: NDArray[Any], first: int, count: int, scales: Singles) -> None:
    """Write what makes each of some rows of eight numbers add up to one."""
    whole = count // LANES * LANES
    for n in range(0, whole, LANES):
        store(scales, n, _invert(total_rows(rows, (first + n) * LANES)))
    for n in range(whole, count):
        scales[n] = np.float32(1.0) / (np.float32(1e-30) + total(load(rows, (first + n) * LANES)))


@inlined
def _to_parts(belief: Lanes) -> Lanes:
    """Return what is stored of a belief: parts of `WHOLE`, at least one each."""
    return add(multiply(belief, spread(np.float32(WHOLE - 1))), spread(np.float32(1.0)))


@inlined
def _state(likely: Lanes) -> Lanes:
    """Return what is stored of probabilities: 0 and `WHOLE` are for what is certain."""
    none = spread(np.float32(0.0))
    return select(none, likely, none, _to_parts(likely))


@inlined
def _use_factor(
    factor: Lanes,
    row: int,
    place: int,
    chains: int,
    size: int,
    predicted: Singles,
    room: Singles,
    beliefs: Singles,
    stored: NDArray[np.uint16],
) -> Lanes:
    """Write and store a belief that is multiplied with a factor; return its sum over profiles.

    It is at a place of `predicted` and `beliefs`, and stored as a row.
    """
    at = place * chains * LANES
    whole = shares = spread(np.float32(0.0))
    for lane in range(at, at + chains * LANES, LANES):
        whole = add(whole, multiply(load(predicted, lane), factor))
    scale = _invert(spread(total(whole)))
    for chain in range(chains):
        found = multiply(multiply(load(predicted, at + chain * LANES), factor), scale)
        store(beliefs, at + chain * LANES, found)
        shares = found if chains == 1 else add(shares, found)
        counted = _to_parts(found)
        if size == LANES:
            store(stored, (row * chains + chain) * LANES, counted)
        else:
            store(room, 0, counted)
            for value in range(size):
                stored[row, chain, value] = np.uint16(room[value])
    return shares


@inlined
def _read_few(
    context: np.uint64,
    shares: Lanes,
    size: int,
    truths: Octets,
    room: Singles,
    begin: int,
    row: int,
    parts: Parts,
) -> bool:
    """Write how likely parts are, and return True, if the context is tabulated."""
    zero = np.uint64(0)
    if truths[context, zero, zero, zero] == UNKNOWN:
        return False
    blocks, to = truths.shape[1], row * parts.shape[1] + begin
    for block in range(blocks):
        first = (np.int64(context) * blocks + block) * size * LANES
        true = _add_some_rows(shares, size, truths, first, room)
        store(parts, to + block * LANES, _state(true))
    return True


@lean
def advance_eight(
    done: int,
    first: int,
    end: int,
    stored: NDArray[np.uint16],
    openness: NDArray[np.uint16],
    groups_before: NDArray[np.int16],
    contexts: Numbers,
    group_of: NDArray[np.int16],
    kind_of: Whole,
    kinds: int,
    edges: NDArray[np.uint16],
    tables: Singles,
    start: Singles,
    kind_by_context: Whole,
    opened_by_context: NDArray[np.float64],
    first_block: Whole,
    blocks: Whole,
    is_choice: Bits,
    candidates: Whole,
    mixed: Singles,
    class_of: Whole,
    rows: Numbers,
    factors: Numbers,
    values: Words,
    silent: Bits,
    likely: Singles,
    decay: float,
    truths: Octets,
    begin: int,
    octets: Octets,
    guide: NDArray[np.int8],
    running_sums: NDArray[np.uint64],
    shifts: NDArray[np.uint64],
    room: Whole,
    opened: NDArray[np.float64],
    scales: Singles,
    products: Singles,
    chosen: Numbers,
    kept: bool,
    cells: Whole,
    predicted: Singles,
    beliefs: Singles,
    groups: NDArray[np.int16],
    stored_after: NDArray[np.uint16],
    openness_after: NDArray[np.uint16],
    parts: Parts,
) -> int:
    """Predict, choose, draw, use and read for some rows at a time, from `done` up to `end`.

    This is `predict_few`, `find_rows`, a draw and `use_symbols_of_few`, for contexts that are
    tabulated and beliefs of one chain with eight values. Rows go through several windows, one after
    the other: `contexts`, `values` and `parts` are `[window][row]`, and the state after a window
    replaces that after the one before. `rows` has the sampler's row by context and value, and
    `factors` the first likelihood by context. Each step is a short loop over as many rows as there
    are bits in a word, so that a processor works on several rows at once. It goes on while enough
    random bytes are left; return the first row that is not done. Each draw takes the next bytes, in
    order. If beliefs and cells of a single window are to be `kept`, they are written row by row
    from row `first` on; otherwise those of the next rows overwrite them. `kind_by_context` and
    `opened_by_context` are what a context adds to cells and to averages of openness. `room`,
    `opened`, `scales` and `products` have room for a word of rows, and `chosen` for the blocks of a
    row.
    """
    places, kinds_before, kinds_here = room[0], room[1], room[2]
    used, windows = np.uint64(0), len(contexts)
    needed, eight = np.uint64(8 * len(chosen) * windows), np.uint64(LANES)
    low, high, levels = edges[0], edges[1], len(edges) + 1
    while done < end:
        count = min(_WORD, end - done, int(np.int64((len(octets) - used) // needed)))
        if count == 0:
            break
        to = done - first if kept else 0
        new = False
        for n in range(count):
            i = np.uint64(done + n)
            group = groups_before[i]
            new |= group < 0
            kinds_before[n] = kind_of[np.uint64(max(0, group))]
            openness_after[i] = openness[i]
        for number in range(windows):
            window = np.uint64(number)
            for n in range(count):
                context = np.uint64(contexts[window, np.uint64(done + n)])
                kinds_here[n], opened[n] = kind_by_context[context], opened_by_context[context]
            for n in range(count):
                average = openness_after[np.uint64(done + n)]
                level = np.int64(average >= low) + np.int64(average >= high)
                places[n] = (kinds_before[n] * kinds + kinds_here[n]) * levels + level
                kinds_before[n] = kinds_here[n]
                openness_after[np.uint64(done + n)] = np.uint16(average * decay + opened[n])
            for n in range(count if kept else 0):
                cells[to + n] = places[n]
            if number:
                _invert_sums(stored_after, done, count, scales)
            else:
                _invert_sums(stored, done, count, scales)
            for n in range(count):
                own = (done + n) * LANES
                shares = load(stored_after, own) if number else load(stored, own)
                found = add_table(shares, tables, places[n] * LANES * LANES)
                store(predicted, (to + n) * LANES, multiply(found, spread(scales[n])))
            for n in range(count if new and number == 0 else 0):
                if groups_before[np.uint64(done + n)] < 0:
                    store(predicted, (to + n) * LANES, load(start, kinds_here[n] * LANES))
            for n in range(count):
                i = np.uint64(done + n)
                context, value = np.uint64(contexts[window, i]), values[window, i]
                row = NOTHING if silent[i] else rows[context * eight + value]
                if row >= 0:
                    symbol = np.int32(guide[np.uint64(row), octets[used]])
                    if symbol < 0:
                        symbol = _decide(row, octets, used, running_sums, shifts)
                        used += np.uint64(7)
                    used += np.uint64(1)
                    places[n] = factors[context] + symbol * LANES
                elif row == NOTHING:
                    places[n] = 0
                else:
                    _choose_few(
                        context,
                        load(predicted, (to + n) * LANES),
                        first_block,
                        blocks,
                        is_choice,
                        candidates,
                        mixed,
                        products,
                        False,
                        chosen,
                    )
                    factor = spread(np.float32(1.0))
                    begun = np.uint64(first_block[context])
                    for block in range(np.uint64(first_block[context + np.uint64(1)]) - begun):
                        candidate = np.uint64(chosen[block])
                        mapped = np.uint64(blocks[begun + block, CLASS_MAP]) + value
                        drawn = candidates[candidate, ROW] + class_of[mapped]
                        symbol = np.int32(guide[np.uint64(drawn), octets[used]])
                        if symbol < 0:
                            symbol = _decide(drawn, octets, used, running_sums, shifts)
                            used += np.uint64(7)
                        used += np.uint64(1)
                        lane = candidates[candidate, LIKELY] + symbol * LANES
                        factor = multiply(factor, load(likely, lane))
                    store(products, n * LANES, factor)
                    places[n] = -1
            for n in range(count):
                place, at = places[n], (to + n) * LANES
                factor = load(likely, place) if place >= 0 else load(products, n * LANES)
                store(beliefs, at, multiply(load(predicted, at), factor))
            _invert_sums(beliefs, to, count, scales)
            for n in range(count):
                at = (to + n) * LANES
                found = multiply(load(beliefs, at), spread(scales[n]))
                store(beliefs, at, found)
                store(stored_after, (done + n) * LANES, _to_parts(found))
            for n in range(count):
                found = load(beliefs, (to + n) * LANES)
                place = np.int64(contexts[window, np.uint64(done + n)]) * truths.shape[1]
                at = (number * parts.shape[1] + done + n) * parts.shape[2] + begin
                for part in range(truths.shape[1]):
                    true = add_table(found, truths, (place + part) * LANES * LANES)
                    store(parts, at + part * LANES, _state(true))
        for n in range(count):
            i = np.uint64(done + n)
            groups[i] = group_of[np.uint64(contexts[windows - 1, i])]
        done += count
    return done


@inlined
def _decide(
    row: int,
    octets: Octets,
    used: np.uint64,
    running_sums: NDArray[np.uint64],
    shifts: NDArray[np.uint64],
) -> np.int32:
    """Return the symbol of a row whose first byte does not decide."""
    rest = octets[used : used + np.uint64(8)]
    return decide(rest, running_sums[np.uint64(row)], shifts[np.uint64(row)])


@inlined
def _use_symbols(
    row: int,
    blocks: int,
    predicted: Singles,
    candidates: Whole,
    likely: Singles,
    chosen: Numbers,
    symbols: Numbers,
    beliefs: Singles,
    stored: NDArray[np.uint16],
) -> None:
    """Write and store the joint belief of a row with its symbols."""
    chains, width = beliefs.shape[1], beliefs.shape[2]
    numbers = chains * width
    whole = spread(np.float32(0.0))
    for lane in range(0, width, LANES):
        factor = spread(np.float32(1.0))
        for number in range(blocks):
            symbol = symbols[row, number]
            if symbol >= 0:
                first = candidates[chosen[row, number], LIKELY] + symbol * width
                factor = multiply(factor, load(likely, first + lane))
        for place in range(row * numbers + lane, (row + 1) * numbers, width):
            found = multiply(load(predicted, place), factor)
            store(beliefs, place, found)
            whole = add(whole, found)
    scale = spread(np.float32(1.0) / (np.float32(1e-30) + total(whole)))
    for place in range(row * numbers, (row + 1) * numbers, LANES):
        found = multiply(load(beliefs, place), scale)
        store(beliefs, place, found)
        counted = multiply(found, spread(np.float32(WHOLE - 1)))
        store(stored, place, add(counted, spread(np.float32(1.0))))


@lean
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
    openness: NDArray[np.uint16],
    decay: float,
    scratch: Singles,
    stored: NDArray[np.uint16],
    openness_after: NDArray[np.uint16],
) -> None:
    """Do the same for factored beliefs, in place, but do not read them.

    `scratch` has room for a block's variables.
    """
    for i in range(len(contexts)):
        begin = first_block[contexts[i]]
        is_open = first_block[contexts[i] + 1] > begin
        openness_after[i] = _average(openness[i], is_open, decay)
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


@inlined
def _average(before: int, is_open: bool, decay: float) -> np.uint16:
    """Return the running average of how often something was open, after a window."""
    opened = (1 - decay) * WHOLE if is_open else 0.0
    return np.uint16(before * decay + opened)


@lean
def average_openness(
    opened: Bits, before: NDArray[np.uint16], decay: float, after: NDArray[np.uint16]
) -> None:
    """Write the running averages of several subjects after a window."""
    for i in range(len(opened)):
        after[i] = _average(before[i], opened[i], decay)


@lean
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


@lean
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
    found: Parts,
) -> None:
    """Write the probability that each part is true; exactly 0 or `WHOLE` if decided.

    Those of row `i` go to `found[rows[i]]`, from column `begin` on.
    """
    for i in range(len(rows)):
        for part in range(len(first_cofactor) - 1):
            likely = part_probability(
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
            stated = min(likely, 1.0) * (WHOLE - 1) + 1 if likely > 0 else 0.0
            found[rows[i], begin + part] = np.uint16(stated)


@inlined
def _turn_word(likely: Parts, word: int, columns: Singles) -> None:
    """Write the columns of the rows of a word one after the other.

    Words are numbered over all windows.
    """
    width = likely.shape[2]
    for row in range(0, _WORD, LANES):
        for column in range(0, width, LANES):
            place = (word * _WORD + row) * width + column
            transpose(likely, place, width, columns, column * _WORD + row, _WORD)


@inlined
def _load_share(columns: Singles, place: int) -> Lanes:
    """Return eight probabilities that are stored in parts of `WHOLE`."""
    return multiply(load(columns, place), spread(np.float32(1.0) / np.float32(WHOLE)))


@inlined
def _weigh_query(
    columns: Singles, lane: int, terms: Whole, begin: int, end: int, every: bool
) -> Lanes:
    """Return how likely a query is for eight rows. Different terms count as independent."""
    share = _load_share(columns, terms[begin] * _WORD + lane)
    if end - begin > 1 and every:
        for term in range(begin + 1, end):
            share = multiply(share, _load_share(columns, terms[term] * _WORD + lane))
    elif end - begin > 1:
        one = spread(np.float32(1.0))
        false = one
        for term in range(begin, end):
            likely = _load_share(columns, terms[term] * _WORD + lane)
            false = multiply(false, subtract(one, likely))
        share = subtract(one, false)
    return share


@inlined
def _find_places(share: Lanes, last: np.float32) -> Lanes:
    """Return the place of eight probabilities in a table of levels.

    The first and the last place are for what is certain.
    """
    none, one = spread(np.float32(0.0)), spread(np.float32(1.0))
    place = multiply(share, spread(last))
    place = select(place, one, place, one)
    place = select(spread(last - 1), place, place, spread(last - 1))
    place = select(share, one, spread(last), place)
    return select(none, share, none, place)


@lean
def answer_queries(
    likely: Parts,
    begin: int,
    end: int,
    terms: Whole,
    first_term: Whole,
    every: Bits,
    queries: Whole,
    thresholds: NDArray[np.float64],
    levels: NDArray[np.uint8],
    counted: Words,
    columns: Singles,
    places: Numbers,
    answers: Words,
    counts: Whole,
) -> None:
    """Answer yes from each query's threshold on, and count the levels of some probabilities.

    Rows from `begin` up to `end` are answered; words begin there. `likely[window][row][column]` has
    the probabilities of parts; `terms` the columns of each query, and `every` whether all of them
    must be true. `answers[window][query][word]` has a bit for each row. For rows that are counted
    `counts[window][query][level]` is increased; there may be no words of them. `likely` has rows
    for whole words, `columns` has room for the columns of a word, and `places` for its rows.
    """
    last, words = np.float32(len(levels) - 1), likely.shape[1] // _WORD
    for window in range(len(likely)):
        for first in range(begin, end, _WORD):
            word = first // _WORD
            there = ~np.uint64(0) >> np.uint64(_WORD - min(_WORD, end - first))
            sampled = counted[window, word] if counted.shape[1] else np.uint64(0)
            _turn_word(likely, window * words + word, columns)
            for n in range(len(queries)):
                threshold = np.float32(thresholds[n])
                if threshold < thresholds[n]:
                    threshold = np.nextafter(threshold, np.float32(2.0))
                bits = np.uint64(0)
                for lane in range(0, _WORD, LANES):
                    share = _weigh_query(
                        columns, lane, terms, first_term[n], first_term[n + 1], every[n]
                    )
                    bits |= at_least(share, spread(threshold)) << np.uint64(lane)
                    if sampled:
                        store(places, lane, _find_places(share, last))
                answers[window, queries[n], word] = bits & there
                left = sampled
                while left:
                    level = levels[places[find_one(left)]]
                    counts[window, queries[n], level] += 1
                    left &= left - np.uint64(1)


@lean
def find_levels(
    likely: Parts,
    terms: Whole,
    first_term: Whole,
    every: Bits,
    queries: Whole,
    levels: NDArray[np.uint8],
    columns: Singles,
    places: Numbers,
    codes: NDArray[np.uint8],
) -> None:
    """Write the level of each query's probability, `codes[query][row]`."""
    last = np.float32(len(levels) - 1)
    rows = codes.shape[1]
    for word in range((rows + _WORD - 1) // _WORD):
        _turn_word(likely, word, columns)
        for n in range(len(queries)):
            for lane in range(0, _WORD, LANES):
                share = _weigh_query(
                    columns, lane, terms, first_term[n], first_term[n + 1], every[n]
                )
                store(places, lane, _find_places(share, last))
            own = codes[queries[n]]
            for row in range(min(_WORD, rows - word * _WORD)):
                own[word * _WORD + row] = levels[places[row]]


@lean
def count_steps(
    rows: Whole,
    stored: NDArray[np.uint16],
    after: Singles,
    predicted: Singles,
    groups_before: NDArray[np.int16],
    cells: Whole,
    tables: Singles,
    joint: bool,
    shares: Singles,
    ratios: Singles,
    starts: Whole,
    steps: Whole,
) -> None:
    """Add the steps from one window to the next of some subjects.

    `stored` is the belief after the window before, `predicted` that before this window's symbols,
    and `after` with them. `tables` are the transitions in use. `starts[cell][chain][value]`
    receives how often a value was there before, and `steps[cell][chain][value before][value]` the
    steps from it as the symbols have them. Both are added up in whole parts of `STEP_PARTS`, so
    that the order of subjects does not matter. `shares` and `ratios` have room for a belief.
    """
    chains, size, width = stored.shape[1], stored.shape[2], after.shape[2]
    for i in rows:
        if groups_before[i] < 0:
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


@lean
def count_steps_of_eight(
    rows: Whole,
    stored: NDArray[np.uint16],
    after: Singles,
    predicted: Singles,
    groups_before: NDArray[np.int16],
    cells: Whole,
    tables: Singles,
    starts: Whole,
    steps: Whole,
) -> None:
    """Do the same for chains of eight values."""
    chains = stored.shape[1]
    for i in rows:
        if groups_before[i] < 0:
            continue
        at, end = i * chains * LANES, (i + 1) * chains * LANES
        whole = spread(np.float32(0.0))
        for place in range(at, end, LANES):
            whole = add(whole, load(stored, place))
        scale = spread(np.float32(STEP_PARTS) / (np.float32(1e-30) + total(whole)))
        first = cells[i] * chains * LANES
        for place in range(at, end, LANES):
            found = multiply(load(stored, place), scale)
            count(starts, first, found)
            alone = add(load(predicted, place), spread(np.float32(1e-30)))
            ratio = divide(load(after, place), alone)
            count_rows(steps, first * LANES, found, ratio, tables)
            first += LANES


@lean
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
