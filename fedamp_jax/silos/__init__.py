"""Federations of clients that keep their data: the same methods, with a server that has no example."""

from fedamp_jax.placement.messages import Answer, Message, Refused
from fedamp_jax.silos.federation import InProcess, connect, deliver
from fedamp_jax.silos.privacy import Privacy
from fedamp_jax.silos.sent import Traffic, traffic
from fedamp_jax.silos.silo import Kind, Place, Silo
from fedamp_jax.silos.site import Settings

__all__ = [
    "Answer",
    "InProcess",
    "Kind",
    "Message",
    "Place",
    "Privacy",
    "Refused",
    "Settings",
    "Silo",
    "Traffic",
    "connect",
    "deliver",
    "traffic",
]
