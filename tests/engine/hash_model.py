"""A model whose logits are a hash of everything that it finds in its slots and pages.

Each output depends on every token seen through the state slot (in order), on the KV of every
token read through the block table, and on the convolution window. A wrong slot or page, a stale
read, a lost or repeated token: each changes the tokens. All arithmetic is on int64 that wraps, so
the tokens do not depend on batching at all.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from baton.engine.layout.layout import AttentionShape, RecurrentShape
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.settings.choices import MOST_NODES
from baton.engine.settings.config import ModelConfig
from baton.engine.step.forward_batch import ForwardBatch, HostLengths
from baton.engine.step.recurrent_index import NO_INDEX, RecurrentIndex
from baton.kernels.chunks import SnapshotPlan
from baton.kernels.host_plan import HostPlan
from baton.kernels.torch_kernels import TORCH
from baton.kernels.verify import Accepted

VOCAB = 97
EOS = 96
WINDOW = 3
MASK = (1 << 64) - 1
STATE, TOKEN, PLACE = 6364136223846793005, 1442695040888963407, 0x9E3779B97F4A7C15


def recurrent_pairs(states: StatePool, layer: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the first layer's part of each pool of states, and the layer's own."""
    for pool in (states.conv, states.ssm):
        first, other = pool[0], pool[layer]
        assert first is not None and other is not None, "all layers here have both states"
        yield first, other


def hash_config(max_model_len: int = 512, chunk: int = 16, layers: int = 1) -> ModelConfig:
    return ModelConfig(
        family="hash",
        folder=Path("."),
        vocab_size=VOCAB,
        hidden_size=1,
        max_model_len=max_model_len,
        layers=(),
        recurrent=(RecurrentShape(conv=(1, WINDOW), ssm=(1, 1, 1)),) * layers,
        attention=(AttentionShape(kv_heads=1, head_dim=1),) * layers,
        mamba_chunk_size=chunk,
        eos_token_ids=(EOS,),
        dtype=torch.int64,
        conv_dtype=torch.int64,
        ssm_dtype=torch.int64,
        raw={},
    )


def signed(value: int) -> int:
    value &= MASK
    return value - (1 << 64) if value >> 63 else value


def mix(x: Tensor) -> Tensor:
    """[n] int64 -> [n] int64, every input bit in every output bit (splitmix64's finaliser)."""
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return x ^ ((x >> 31) & ((1 << 33) - 1))


class HashModel:
    """peak: the logit scale; the likeliest token is clear, but others can be drawn."""

    weight_bytes = 0
    kernels = TORCH
    needs_cpu_seq_lens = True

    def __init__(self, config: ModelConfig | None = None, peak: float = 8.0) -> None:
        self.config = config or hash_config()
        self.peak = peak
        self.forwards = 0
        self.fail_on: set[int] = set()  # forwards, counted from 1, that raise
        self.fail_next = False  # the next forward raises, once

    def plan(
        self, host: HostLengths, decode_rows: int, snapshots: SnapshotPlan | None
    ) -> HostPlan[RecurrentIndex]:
        return NO_INDEX

    def forward(self, batch: ForwardBatch, states: StatePool, pages: PagePool) -> Tensor:
        """[L, vocab] float32, L of batch.logit_tokens."""
        self.forwards += 1
        if self.forwards in self.fail_on or self.fail_next:
            self.fail_next = False
            raise RuntimeError("the model was told to fail")
        self._check(batch)
        pages.k[0][batch.token_pages, batch.token_offsets, 0, 0] = batch.token_ids * TOKEN
        pages.v[0][batch.token_pages, batch.token_offsets, 0, 0] = batch.positions + 1
        sums = self._window(batch, states, pages) if batch.window is not None else []
        rows = range(len(sums), batch.rows)
        sums += [self._row(batch, row, states, pages) for row in rows]
        hashes = mix(torch.cat(sums)[batch.logit_tokens])
        words = mix(hashes[:, None] + torch.arange(VOCAB)[None, :] * signed(PLACE))
        return (words.float() / 2.0**63) * self.peak

    def _window(self, batch: ForwardBatch, states: StatePool, pages: PagePool) -> list[Tensor]:
        """[1] int64 for each token that is verified. Keeps the tokens, writes no state."""
        assert batch.window is not None
        size, found = batch.window.tokens, []
        for request in range(batch.decode_requests):
            behind = {0: self._state(batch, request, states)}  # each node, by its links
            for place, row in enumerate(range(request * size, (request + 1) * size)):
                kv = int(batch.kv_lens[row])
                path = _links(batch, row, place)
                at = behind[path ^ 1 << place]
                behind[path], seen = self._advance(at, int(batch.token_ids[row]))
                attended = self._attended(batch, row, pages)[-1:] if kv else torch.zeros(1).long()
                found.append(torch.tensor([seen]) + attended)
        batch.kept[0][:, 0] = batch.token_ids[: batch.decode_rows]
        return found

    def commit(self, batch: ForwardBatch, states: StatePool, accepted: Accepted) -> None:
        """Write the states after the accepted tokens, one by one."""
        assert batch.window is not None
        ssm = states.ssm[0]
        assert ssm is not None
        kept = batch.kept[0][:, 0].view(-1, batch.window.tokens)
        reads = [self._state(batch, row, states) for row in range(len(kept))]
        for row, at in enumerate(reads):
            for count in range(1, int(accepted.counts[row]) + 1):
                at, _ = self._advance(at, int(kept[row, count - 1]))
                slots = []
                if count == int(accepted.counts[row]):
                    slots.append(int(accepted.write_slots[row]))
                if int(accepted.track_slots[row]) and count == int(accepted.track_counts[row]):
                    slots.append(int(accepted.track_slots[row]))
                for slot in slots:
                    ssm[slot, 0, 0, 0] = signed(at[0])
                    states.conv[0][slot, 0] = torch.tensor(at[1])

    def _state(self, batch: ForwardBatch, request: int, states: StatePool) -> tuple[int, list[int]]:
        """The state and the window that a request begins the step with."""
        ssm, read = states.ssm[0], int(batch.read_slots[request])
        assert ssm is not None
        if not bool(batch.has_initial[request]):
            return 0, [0] * WINDOW
        return int(ssm[read, 0, 0, 0]), [int(t) for t in states.conv[0][read, 0]]

    @staticmethod
    def _advance(at: tuple[int, list[int]], token: int) -> tuple[tuple[int, list[int]], int]:
        """The next state and window, and what the token sees of them."""
        window = [*at[1][1:], token + 1]
        state = (at[0] * STATE + (token + 1) * TOKEN) & MASK
        return (state, window), signed(state + sum(w * PLACE << i for i, w in enumerate(window)))

    @staticmethod
    def _attended(batch: ForwardBatch, row: int, pages: PagePool) -> Tensor:
        """[tokens of the row's context] int64, sums of what stands in its pages."""
        kv = int(batch.kv_lens[row])
        table = batch.block_tables[batch.table_rows[row]]
        at = torch.arange(kv)
        if row < batch.decode_rows and batch.nodes is not None and kv:
            path = int(batch.nodes[row])
            first = kv - path.bit_count()
            at[first:] = torch.tensor([first + i for i in range(MOST_NODES) if path >> i & 1])
        keys = pages.k[0][table].reshape(-1)[at]
        places = pages.v[0][table].reshape(-1)[at]
        return mix(keys + places * signed(PLACE)).cumsum(0)

    def _row(self, batch: ForwardBatch, row: int, states: StatePool, pages: PagePool) -> Tensor:
        """[tokens of the row] int64, from state, window and pages."""
        start, end = batch.host.cu_seqlens[row : row + 2]
        tokens = [int(t) for t in batch.token_ids[start:end]]
        request = row - batch.decode_rows + batch.decode_requests
        write = int(batch.write_slots[request])
        conv, ssm = states.conv[0], states.ssm[0]
        assert ssm is not None
        at = self._state(batch, request, states)
        seen: list[int] = []
        kept = snapshots_of(batch, row)
        for depth, token in enumerate(tokens, start=batch.host.prefix_lens[row] + 1):
            at, value = self._advance(at, token)
            seen.append(value)
            if depth in kept:
                ssm[kept[depth], 0, 0, 0] = signed(at[0])
                conv[kept[depth], 0] = torch.tensor(at[1])
        ssm[write, 0, 0, 0] = signed(at[0])
        conv[write, 0] = torch.tensor(at[1])
        attended = self._attended(batch, row, pages)
        return torch.tensor(seen) + attended[len(attended) - (end - start) :]

    def _check(self, batch: ForwardBatch) -> None:
        writes = batch.write_slots.tolist()
        kept = [slot for row in range(batch.rows) for slot in snapshots_of(batch, row).values()]
        writes += kept
        assert 0 not in writes and len(set(writes)) == len(writes), writes
        reads = zip(batch.read_slots.tolist(), batch.write_slots.tolist(), strict=True)
        elsewhere = {read for read, write in reads if read != write}
        assert elsewhere.isdisjoint(writes), "a row reads what another one writes"
        padding = self._padding(batch)
        kept_places = zip(batch.token_pages.tolist(), batch.token_offsets.tolist(), strict=True)
        places = [place for i, place in enumerate(kept_places) if i not in padding]
        assert len(set(places)) == len(places), "two tokens write one place"
        assert 0 not in [page for page, _ in places], "a real token writes the padding page"
        assert not batch.token_pages[sorted(padding)].any(), "padding writes a real page"
        starts, ends = list(batch.host.prefix_lens), batch.kv_lens.tolist()
        for row in range(batch.decode_rows):
            if ends[row]:  # the host knows at least how far it is
                assert starts[row] < ends[row]
                starts[row] = ends[row] - 1
        lengths = zip(starts, ends, strict=True)
        positions = [p for start, end in lengths for p in range(start, end)]
        found = batch.positions.tolist()
        assert positions == [p for i, p in enumerate(found) if i not in padding]
        assert batch.host.cu_seqlens[batch.decode_rows] == batch.decode_rows

    @staticmethod
    def _padding(batch: ForwardBatch) -> set[int]:
        """The tokens of windows that are padding."""
        decoding = range(batch.decode_rows if batch.window is not None else 0)
        return {row for row in decoding if not int(batch.kv_lens[row])}


def _links(batch: ForwardBatch, row: int, place: int) -> int:
    """The bits of the nodes that a token of a window follows, and its own."""
    return (2 << place) - 1 if batch.nodes is None else int(batch.nodes[row])


class LayeredHashModel(HashModel):
    """A hash model with several layers of each kind: every layer keeps what the first does, plus
    its number, and a step that finds them to differ fails. `between` is called before each layer
    but the first."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__(hash_config(layers=layers))

    def between(self, layer: int) -> None:
        """Do nothing; a test overrides this to wait between layers."""

    def forward(self, batch: ForwardBatch, states: StatePool, pages: PagePool) -> Tensor:
        self._compare(batch, states, pages)
        logits = super().forward(batch, states, pages)
        written = {int(slot) for slot in batch.write_slots}
        written |= {slot for row in range(batch.rows) for slot in snapshots_of(batch, row).values()}
        for layer in range(len(pages.k)):
            if layer:
                self.between(layer)
            for slot in written if layer else ():
                for first, other in recurrent_pairs(states, layer):
                    other[slot] = first[slot] + layer
            for pool in (pages.k, pages.v):
                at = batch.token_pages, batch.token_offsets
                pool[layer][at] = pool[0][at] + (layer if layer else 0)
            if batch.progress is not None:
                batch.progress.kv_written(layer)
                batch.progress.state_written(layer)
        if batch.progress is not None:
            batch.progress.all_written()
        return logits

    def _compare(self, batch: ForwardBatch, states: StatePool, pages: PagePool) -> None:
        for row in range(batch.rows):
            read, prefix = int(batch.read_slots[row]), batch.host.prefix_lens[row]
            table = batch.block_tables[batch.table_rows[row]]
            for layer in range(1, len(pages.k) if prefix else 0):
                for kept, copied in recurrent_pairs(states, layer):
                    assert copied[read].equal(kept[read] + layer), "layers' states differ"
                for pool in (pages.k, pages.v):
                    first, other = (pool[n][table].reshape(-1)[:prefix] for n in (0, layer))
                    assert other.equal(first + layer), "layers' KV differs"


def snapshots_of(batch: ForwardBatch, row: int) -> dict[int, int]:
    """Depth -> slot of the snapshots that this prefill row writes."""
    plan = batch.snapshots
    if plan is None:
        return {}
    return {
        depth: slot
        for index, depth, slot in zip(plan.rows, plan.depths, plan.slots, strict=True)
        if index + batch.decode_rows == row
    }


def expected_tokens(model: HashModel, prompt: tuple[int, ...], count: int) -> list[int]:
    """The greedy continuation, straight from the definition: no pools, no batches."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(model_logits(model, tokens).argmax()))
    return tokens[len(prompt) :]


def model_logits(model: HashModel, tokens: list[int]) -> Tensor:
    """[vocab] float32 after `tokens`."""
    state, window = 0, [0] * WINDOW
    for token in tokens:
        window = [*window[1:], token + 1]
        state = (state * STATE + (token + 1) * TOKEN) & MASK
    ids = torch.tensor(tokens)
    places = torch.arange(1, len(tokens) + 1)
    attended = mix(ids * TOKEN + places * signed(PLACE)).sum()
    seen = signed(state + sum(w * PLACE << i for i, w in enumerate(window)))
    hashed = mix((attended + seen)[None])
    words = mix(hashed[:, None] + torch.arange(VOCAB)[None, :] * signed(PLACE))
    return (words.float() / 2.0**63 * model.peak)[0]
