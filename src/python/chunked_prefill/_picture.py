# SPDX-License-Identifier: MIT
"""A plan as a picture, for notebooks: the tool draws more of it."""

from __future__ import annotations

from ._core import ChunkPlan

_STYLE = (
    "text{font:12px sans-serif;fill:#333}.quiet{fill:#777}.live{fill:#4a7dbd}.bar{fill:#8fb3de}"
    ".room{fill:#eee}@media(prefers-color-scheme:dark){text{fill:#ddd}.quiet{fill:#999}"
    ".room{fill:#333}}"
)
_ROWS = 40
_LEFT, _TOP, _SEQUENCES, _TOKENS, _ROW = 60, 62, 420, 160, 18


def svg(plan: ChunkPlan) -> str:
    """Loops down, at most 40 of them: the range of sequences that each covers, and its tokens."""
    loops = plan.chunked_loop_num
    shown = min(loops, _ROWS)
    width = _LEFT + _SEQUENCES + 20 + _TOKENS + 90
    height = _TOP + _ROW * shown + (38 if loops > shown else 20)
    bars = _LEFT + _SEQUENCES + 20
    grain = f", grain {plan.grain}" if plan.policy == "packed" else ""
    title = (
        f"{plan.policy}{grain}: {loops:,} loops for {plan.total_tokens:,} tokens of "
        f"{plan.batch_size:,} sequences"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img">'
        f"<title>{title}</title><style>{_STYLE}</style>",
        f'<text x="12" y="22" font-weight="bold">{title}</text>',
        f'<text class="quiet" x="12" y="{_TOP - 8}">loop</text>',
        f'<text class="quiet" x="{_LEFT}" y="{_TOP - 8}">{plan.batch_size:,} sequences</text>',
        f'<text class="quiet" x="{bars}" y="{_TOP - 8}">tokens, of {plan.chunk_capacity:,}</text>',
    ]
    rows = zip(plan.seq_range_per_loop, plan.tokens_per_loop, plan.max_chunk_len_per_loop)
    for loop, ((begin, end), tokens, longest) in list(enumerate(rows))[:shown]:
        y = _TOP + _ROW * loop
        scale = _SEQUENCES / plan.batch_size
        live = f"sequences {begin} to {end - 1}, at most {longest:,} tokens each"
        tip = f"loop {loop}: {live if begin < end else 'no tokens'}"
        parts.append(
            f"<g><title>{tip}</title>"
            f'<text class="quiet" x="{_LEFT - 10}" y="{y + 12}" text-anchor="end">{loop}</text>'
            f'<rect class="room" x="{_LEFT}" y="{y}" width="{_SEQUENCES}" height="{_ROW - 3}"/>'
            f'<rect class="live" x="{_LEFT + scale * begin:.1f}" y="{y}" '
            f'width="{max(1.0, scale * (end - begin)) if begin < end else 0:.1f}" height="{_ROW - 3}"/>'
            f'<rect class="room" x="{bars}" y="{y}" width="{_TOKENS}" height="{_ROW - 3}"/>'
            f'<rect class="bar" x="{bars}" y="{y}" '
            f'width="{_TOKENS * tokens / plan.chunk_capacity:.1f}" height="{_ROW - 3}"/>'
            f'<text x="{bars + _TOKENS + 8}" y="{y + 12}">{tokens:,}</text></g>'
        )
    if loops > shown:
        y = _TOP + _ROW * shown + 16
        parts.append(f'<text class="quiet" x="{_LEFT}" y="{y}">and {loops - shown:,} more</text>')
    return "\n".join([*parts, "</svg>"])
