"""An algorithm of one's own with options of its own: the V-trace actor-critic of IMPALA (Espeholt
et al. 2018). Its targets stay right where the policy that acted lags behind the one that learns.

PYTHONPATH=. python -m examples.vtrace
"""

from pydantic import Field
from pydantic.dataclasses import dataclass

import pearl
from pearl.algorithms.families.rollout import build, log_prob_and_entropy, start
from pearl.algorithms.fields import Limit
from pearl.algorithms.options import STRICT, OwnRollout

FAMILY, POLICY = "rollout", "actor"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Options(OwnRollout):
    rho: Limit = Field(default=1.0, description="Where the weight of a TD error is cut.")
    c: Limit = Field(default=1.0, description="Where the weight of the trace is cut.")


def graph(system):
    a, loss = system.algorithm, "examples.vtrace:losses"
    options = {"rho": a.rho, "c": a.c, "discount": a.discount}
    return build(system, "vtrace", losses=loss, epochs=a.epochs, options=options)


def initialise(buffers, system, seed):
    start(buffers, system, seed, updates=system.algorithm.epochs)


def losses(nets, batch, hyper, *, rho, c, discount):
    """The targets (equation 1) and the policy gradient (section 4.2) of one rollout."""
    log_prob, entropy = log_prob_and_entropy(nets, batch)
    value = nets.critic(batch.obs)
    going = ((batch.terminated | batch.truncated) == 0).float()
    after = nets.critic(batch.next_obs).detach() * (1.0 - batch.terminated.float())
    rows = (log_prob.detach() - batch.log_prob).exp(), batch.reward, value.detach(), after, going
    ratio, reward, now, after, going = (x.view(hyper.horizon, hyper.envs) for x in rows)
    target, trace = now.clone(), 0.0
    for t in reversed(range(hyper.horizon)):
        trace = discount * ratio[t].clamp(max=c) * going[t] * trace
        trace += ratio[t].clamp(max=rho) * (reward[t] + discount * after[t] - now[t])
        target[t] += trace
    after[:-1] += going[:-1] * (target[1:] - after[:-1])
    gain = ratio.clamp(max=rho) * (reward + discount * after - now)
    actor = -(gain.flatten() * log_prob).mean() - hyper.entropy * entropy.mean()
    error = (target.flatten() - value).square().mean()
    yield ("actor", "critic"), (actor, hyper.value_weight * error)


ACTING = {"name": "examples.vtrace", "env": "CartPole-v1", "rollout_steps": 32, "epochs": 4}
LEARNT = {"entropy": 0.01, "learning_rate": 2e-3}
SPEC = {"algorithm": ACTING | LEARNT, "train": {"steps": 50_000, "evaluate_every": 0}}

if __name__ == "__main__":
    print(pearl.compile(SPEC).train().returns)
