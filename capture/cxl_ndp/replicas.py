"""Every expert at full precision and at 1 to 4 bits inside a live model, held once and shared by all sequences."""

import torch

from tokentape.capture.live.copies import StackedExperts, experts_of, is_inputs_first, n_experts_of
from tokentape.capture.live.loop import Outcome
from tokentape.capture.losses.experts import expert_of, matrices_of, replicas
from tokentape.capture.losses.run import calibrated
from tokentape.capture.models import Loaded
from tokentape.capture.plan import CaptureSettings, plan, requests
from tokentape.capture.shard import request_rows
from tokentape.policies.replicas import WIDTHS
from tokentape.warehouse.tape import Tape


class ReplicaExperts(StackedExperts):
    """Context manager (capture/live/copies.py): copy 0 is the model's own expert, copy b its replica of b bits.

    method: gptq, calibrated on the very text that the losses tape `tape` was, or rtn. Needs six times the experts' memory. Raises
    ValueError where the tape is of another model, or that text has changed.
    """

    def __init__(self, loaded: Loaded, tape: Tape, method: str) -> None:
        super().__init__(loaded.model, n_copies=1 + len(WIDTHS))
        self.method, self.trace_id = method, tape.trace_id
        if tape.manifest.model_revision != loaded.source.fingerprint:
            raise ValueError(
                f"tape {tape.trace_id}: losses of {tape.manifest.model_id} as it was then, not of this model; capture them "
                f"with `tokentape capture --model {loaded.source.model_id} --tables losses`"
            )
        tape.files("losses")  # refuses a tape of another kind
        self._stacks = {
            (layer, name): torch.cat([getattr(experts, name).detach()] * self.n_copies)
            for layer, experts in self.experts.items()
            for name in matrices_of(experts).values()
        }
        self._fill(loaded, tape)

    @torch.inference_mode()
    def _fill(self, loaded: Loaded, tape: Tape) -> None:
        of_tape = None  # every expert, with the rows that the tape's losses were calibrated on
        if self.method == "gptq":
            recorded = tape.manifest.settings
            settings = CaptureSettings(**recorded | {"tables": tuple(recorded["tables"]), "model": loaded.source.model_id})
            prompts = requests(plan(settings), loaded.tokenizer)
            now = request_rows(prompts, [Outcome()] * len(prompts), settings.dataset)["prompt_sha256"].to_pylist()
            if now != tape.read("requests")["prompt_sha256"].to_list():
                raise ValueError(
                    f"tape {tape.trace_id}: its calibration text, {settings.dataset}, has changed since; capture the losses "
                    "again, or take method=rtn"
                )
            of_tape = calibrated(loaded, prompts, list(experts_of(loaded.model)), settings.seed, settings.batch_size)
        places = [(layer, index) for layer, module in self.experts.items() for index in range(n_experts_of(module))]
        for layer, index in places:
            module, x = self.experts[layer], next(of_tape).x if of_tape else None
            for bits, replica in replicas(expert_of(module, index), x, self.method):
                for part, name in matrices_of(module).items():
                    made = getattr(replica, part)
                    place = bits * n_experts_of(module) + index
                    self._stacks[layer, name][place] = made.T if is_inputs_first(module) else made

    def stacked(self, layer: int, name: str) -> torch.Tensor:
        return self._stacks[layer, name]
