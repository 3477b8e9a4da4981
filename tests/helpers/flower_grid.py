"""Flower's grid in one process: it hands each message to the client app, as a SuperLink would by the network. Without ray."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class LocalGrid(Grid):
    """Holds nodes by their id, each with its node config.

    Args:
        app: makes the client app of a message: a new one stands for a client that was restarted.
        config: of the run, as every node is told it.
        lost: ids of nodes whose replies never come.
    """

    def __init__(
        self, app: Callable[[], ClientApp], nodes: Mapping[int, Mapping[str, str | int | float]],
        config: Mapping[str, str | int | float], lost: Iterable[int] = (),
    ) -> None:  # fmt: skip
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1  # what a process of Flower's is told
        self.app, self.nodes, self.config, self.lost = app, nodes, config, set(lost)
        self.asked: list[list[int]] = []
        self.told: list[Message] = []

    def set_run(self, run: object) -> None:
        raise NotImplementedError

    @property
    def run(self) -> object:
        raise NotImplementedError

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None) -> Message:
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        messages = list(messages)
        self.asked.append([m.metadata.dst_node_id for m in messages])
        replies = [self._reply(m) for m in messages if m.metadata.dst_node_id not in self.lost]
        self.told += replies
        return replies

    def _reply(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        own, given = dict(self.nodes[node]), dict(self.config)
        context = Context(run_id=1, node_id=node, node_config=own, state=RecordDict(), run_config=given)
        try:
            return self.app()(message, context)
        except Exception as error:  # as a SuperNode does
            return Message(Error(code=2, reason=f"{type(error).__name__}: {error}"), reply_to=message)


def server_context(config: Mapping[str, str | int | float]) -> Context:
    return Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=dict(config))
