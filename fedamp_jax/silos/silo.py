"""One client that keeps its data: what runs at a hospital."""

import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedamp_jax.checks import check_type
from fedamp_jax.data import check_pair
from fedamp_jax.driver.evaluation import compiled_personal_models, compiled_personal_scores, reader_of
from fedamp_jax.driver.rounds import compiled_round
from fedamp_jax.engine.task_checks import check_loss_fits, check_task_fits
from fedamp_jax.files import local_path
from fedamp_jax.layout import contiguous, with_examples, without_examples
from fedamp_jax.placement.divided import MODELS, ROUND, RemoteState, cut_of, shapes_of, where_of
from fedamp_jax.placement.messages import Answer, Message, Refused, read, refuse_unlike, written
from fedamp_jax.placement.placement import Placement
from fedamp_jax.placement.remote import Remote
from fedamp_jax.placement.stages import Divided
from fedamp_jax.saving import save_models
from fedamp_jax.silos.privacy import Privacy, Spent
from fedamp_jax.silos.sent import Traffic, traffic
from fedamp_jax.silos.versions import Versions
from fedamp_jax.types import Algorithm, Data, Static, Task, Variables

SCORES = "compiled_personal_scores"


class Kind(NamedTuple):
    """What a silo says of its data when it joins: numbers, and no example.

    Attributes:
        sizes: examples for training and for testing.
        classes: of the labels, 0 for targets.
        x: the dtype and shape of an example, `[dtype, shape]`, in the tree that it is.
        y: likewise of a label or target.
    """

    sizes: tuple[int, int]
    classes: int
    x: Any
    y: Any


class Place(NamedTuple):
    """What a server tells a silo when it is admitted.

    Attributes:
        row: the client's, which is its identity in random number generation, too.
        clients: how many there are.
        seed: of the run.
        longest: the most examples of a client, in training and in test data.
        dtype: of models on their way, None for their own.
    """

    row: int
    clients: int
    seed: int
    longest: tuple[int, int]
    dtype: str | None = None


class Silo:
    """One client of a federation, with its own data.

    It answers the messages of a server that runs the same method. Only what the method sends leaves it
    (`fedamp_jax.traffic` says what that is), never an example or a label.

    Attributes:
        model: the client's `Variables` after `fedamp_jax.silos.deliver`, None before. `model.npz` in its folder has it,
            too, for `fedamp_jax.load_models`.
    """

    def __init__(
        self, task: Task, algorithm: Algorithm, train: Data, test: Data, *, folder: str | os.PathLike | None = None,
        privacy: Privacy | None = None,
    ):  # fmt: skip
        """Check the data.

        Args:
            task: the model, the same as at the server.
            algorithm: the method, likewise.
            train: the client's training data, `Data` of one client.
            test: its test data.
            folder: where it keeps its part of the method's state, with which it comes back after it was stopped; made
                if it does not exist. None: in memory.
            privacy: noise that it adds to what it sends; None for none.

        Raises:
            TypeError, ValueError: data that do not suit the task, or of several clients; a folder that is a file.
        """
        check_type("algorithm", algorithm, Algorithm, "such as fedamp_jax.fedamp(task, solver, ...)")
        for name, data in (("train", train), ("test", test)):
            check_type(name, data, Data, "fedamp_jax.data makes one")
            if len(data.size) != 1:
                raise ValueError(f"{name} must be the data of one client, got {len(data.size)} of them")
        check_pair(train, test)
        check_task_fits(task, train)
        check_loss_fits(task, train)
        self._task, self._algorithm = task, algorithm
        self._data = contiguous(train), contiguous(test)
        self._folder = None if folder is None else local_path(folder, "the silo's folder")
        if self._folder is not None:
            if self._folder.is_file():
                raise ValueError(f"the silo's folder {str(folder)!r} is a file: give a folder")
            self._folder.mkdir(parents=True, exist_ok=True)
        self._privacy, self._spent = privacy, Spent(self._folder)
        self.model: Variables | None = None
        self._place: Place | None = None

    @property
    def kind(self) -> Kind:
        """A description of the data for the server."""
        train, test = self._data
        x, y = jax.tree.map(lambda a: [str(a.dtype), list(a.shape[1:])], (train.x, train.y))
        return Kind((int(train.size[0]), int(test.size[0])), int(train.classes[0]), x, y)

    def admit(self, place: Place) -> None:
        """Take a place in a federation.

        Raises:
            Refused: if the folder holds the state of another federation, or of another place in it.
        """
        self._place = place
        self._key = jax.random.key(place.seed)
        self._cuts: dict[str, tuple[Divided, Divided]] = {}
        self._call: _Open | None = None
        remote = Remote(dtype=place.dtype)
        self._own = [
            d._replace(
                id=jnp.full((1,), place.row, d.id.dtype), longest=Static(n), typical=Static(0), placement=Placement()
            )
            for d, n in zip(self._data, place.longest, strict=True)
        ]
        self._all = [_of_all(d, place.clients, remote) for d in self._own]
        where = where_of(self._algorithm, *shapes_of(self._all[0]))
        state = jax.eval_shape(self._algorithm.init, self._key, shapes_of(self._all[0])[0])
        number = jax.ShapeDtypeStruct((), jnp.int32)
        self._state = RemoteState(state, jax.ShapeDtypeStruct((place.clients,), jnp.int32), number, where)
        self._versions = Versions(self._folder, self._identity())
        if self._privacy is not None:
            self._privacy.check(self._cut(ROUND)[1])

    @property
    def sends(self) -> Traffic:
        """What a round sends, known before the first message; the silo has to be admitted."""
        assert self._place is not None
        return traffic(self._algorithm, self._all[0], dtype=self._place.dtype)

    def _identity(self) -> str:
        assert self._place is not None
        return f"{self._cut(ROUND)[0].fingerprint} {tuple(self._place)}"

    def answer(self, message: Message) -> Answer:
        """The answer to a message.

        Raises:
            Refused: the server runs another program, or has a state of this client that is not kept any more.
            ValueError: a message that is not what the program says.
        """
        if self._place is None:
            raise Refused("it was not admitted to a federation")
        if message.program not in _PROGRAMS:
            raise Refused(f"there is no program {message.program!r}; there are {', '.join(_PROGRAMS)}")
        canonical, cut = self._cut(message.program)
        if message.fingerprint != canonical.fingerprint:
            raise Refused(
                f"the server's {message.program} has the fingerprint {message.fingerprint}, and its own "
                f"{canonical.fingerprint}: both need the same method, hyper-parameters, model and versions"
            )
        if not 1 <= message.first <= message.exchange <= len(cut.exchanges):
            raise ValueError(
                f"{message.program} has {len(cut.exchanges)} exchanges, but this is number {message.exchange}"
            )
        expected = cut.down(message.exchange, message.first)
        for sent, numbers, rows in zip(message[-2:], expected, (True, False), strict=True):
            refuse_unlike(sent, {v: cut.avals[v] for v in numbers}, self._place.dtype, rows=rows, finite=False)
        call = self._opened(message, cut)
        own = self._place.dtype
        call.rows.update({v: read(a, cut.avals[v], own) for v, a in message.rows.items()})
        call.whole.update({v: read(a, cut.avals[v], own) for v, a in message.whole.items()})
        program = cut.client_program(message.exchange, message.first)
        up, kept = program(jnp.int32(self._place.row), call.rows, call.whole)
        call.rows.update(kept)
        if self._privacy is not None:
            up = self._protected(message, cut, call, up)
        if message.exchange == len(cut.exchanges):
            self._close(message, cut, call)
        return Answer({v: written(a, own if message.program == ROUND else None) for v, a in up.items()})

    def _protected(self, message: Message, cut: Divided, call: "_Open", up: dict[int, Any]) -> dict[int, Any]:
        """What is sent in place of `up`, from which the client goes on, too."""
        assert self._privacy is not None
        assert self._place is not None
        if message.program != ROUND:
            return {v: jnp.full_like(a, jnp.nan) for v, a in up.items()}
        row = self._place.row
        sent = self._privacy.protected(cut, up, lambda v: cut.kept_row(v, row, call.rows, call.whole))
        self._spent.count()
        call.rows.update(sent)
        return sent

    @property
    def spent(self) -> tuple[float, float] | None:
        """The (epsilon, delta) of what it has sent so far; None without `privacy`, which bounds nothing."""
        if self._privacy is None:
            return None
        return self._privacy.epsilon(self._spent.answers), self._privacy.delta

    def _cut(self, program: str) -> tuple[Divided, Divided]:
        """The cut as the server has it, and the one for the client's own number of examples."""
        if program not in self._cuts:
            fn, static, of = _PROGRAMS[program]
            args = of(self._state, self._all, self._key)
            train, test = (len(d.y) for d in self._own)
            counts = iter((train, test))
            own = [shapes_of(a, examples=next(counts) if isinstance(a, Data) else None)[0] for a in args]
            functions = static(self._task, self._algorithm, self._all[0])
            canonical, _ = cut_of(fn, functions, shapes_of(*args), program)
            mine, _ = cut_of(fn, functions, own, program)
            if not canonical.same_messages(mine):
                raise Refused(f"{program} depends on the number of examples of a client, and cannot be cut")
            self._cuts[program] = canonical, mine
        return self._cuts[program]

    def _opened(self, message: Message, cut: Divided) -> "_Open":
        """The call that a message belongs to, begun with the first message of it that comes."""
        name = message.program, message.base, message.made
        if message.first == 1:
            leaves = iter(self._versions.read(message.base, self._initial))
            rows = {n: next(leaves) for n, at in zip(cut.ins, cut.held, strict=True) if at and n not in cut.examples}
            pool = [a for d in self._own for a in jax.tree.leaves(without_examples(d)[1])]
            self._call = _Open(name, 0, rows, dict(zip(sorted(cut.examples), pool, strict=False)))
        if self._call is None or (self._call.name, self._call.exchange) != (name, message.first - 1):
            raise ValueError(f"exchange {message.exchange} of {message.program} does not follow what came before it")
        self._call = self._call._replace(exchange=message.exchange)
        return self._call

    def _initial(self) -> list[Any]:
        """The client's rows of the state before the first round."""
        state = jax.tree.leaves(self._algorithm.init(self._key, self._own[0]))
        return [a for a, at in zip(state, self._state.where.of, strict=True) if at]

    def _close(self, message: Message, cut: Divided, call: "_Open") -> None:
        outs = [call.rows[o] for o, at in zip(cut.outs, cut.kept, strict=True) if at]
        if message.program == ROUND:
            self._versions.write(message.base, message.made, outs)
        elif message.program == MODELS:
            task = reader_of(self._task, self._algorithm, self._all[0])
            shapes = jax.eval_shape(task.init, self._key)
            self.model = jax.tree.unflatten(jax.tree.structure(shapes), [a[0] for a in outs])
            if self._folder is not None:
                save_models(self._folder / "model.npz", task, jax.tree.map(lambda a: a[None], self.model),
                            classes=self._own[0].classes)  # fmt: skip
        self._call = None


class _Open(NamedTuple):
    """A call in which the client has been asked for something."""

    name: tuple[str, int, int]
    exchange: int
    rows: dict[int, Any]
    whole: dict[int, Any]


def _of_all(data: Data, clients: int, remote: Remote) -> Data:
    """Abstract data of all clients, from those of one."""
    own, examples = without_examples(data)
    own = jax.tree.map(lambda a: jax.ShapeDtypeStruct((clients, *a.shape[1:]), a.dtype), own)
    return with_examples(own._replace(placement=remote), examples)


_PROGRAMS: dict[str, Any] = {
    ROUND: (
        compiled_round.__wrapped__,
        lambda task, method, train: (method.round,),
        lambda s, d, key: (s, d[0], key),
    ),
    SCORES: (
        compiled_personal_scores.__wrapped__,
        lambda task, method, train: (reader_of(task, method, train), method.personalize),
        lambda s, d, key: (key, s, *d),
    ),
    MODELS: (
        compiled_personal_models.__wrapped__,
        lambda task, method, train: (method.personalize,),
        lambda s, d, key: (key, s, d[0]),
    ),
}
"""By name: the function, its static arguments, and the others."""
