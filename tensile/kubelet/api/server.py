"""The kubelet API of the virtual nodes: one HTTPS port for each, so that the node follows from the port.

Routes such as /pods carry no node's name, and rights are asked for by node: with one port for all, neither could be
answered truly. Ports come, move and go while the engine runs; what is open on the others is not touched.
"""

from tensile.kubelet.api.listener import Listener
from tensile.kubelet.api.meter import Meter
from tensile.kubelet.api.service import Gate, Service, Site
from tensile.kubelet.api.target import Log, Pods
from tensile.kubelet.api.wire import Limits


class KubeletServer:
    """The listeners of all virtual nodes."""

    def __init__(self, gate: Gate, log: Log, limits: Limits | None = None) -> None:
        self._gate = gate
        self._log = log
        self._limits = limits or Limits()
        self._service = Service(gate, log, self._limits)
        self._listeners: dict[str, Listener] = {}

    async def start(self, node: str, bind: str, port: int, pods: Pods, meter: Meter | None = None) -> None:
        """Serve a virtual node on that port, or serve it there from now on; streams that are open go on.

        Without a `meter` nobody knows what it uses.
        TensileError when the port cannot be had or the certificate's files are no good: nothing has changed then.
        """
        self._gate.serving.context(node, "")
        listener = self._listeners.get(node)
        if listener is None:
            listener = Listener(Site(node, pods), self._service, self._log, self._limits.waiting)
        if listener.address != (bind, port):
            await listener.listen(bind, port)
        listener.site.pods, listener.site.meter = pods, meter
        self._listeners[node] = listener

    async def stop(self, node: str) -> None:
        """Serve a virtual node no more; its streams end."""
        listener = self._listeners.pop(node, None)
        self._gate.serving.forget(node)
        if listener is not None:
            await listener.close()

    async def close(self) -> None:
        """Stop serving every virtual node."""
        for node in tuple(self._listeners):
            await self.stop(node)

    def port(self, node: str) -> int:
        """Give the port on which a node that was started is served."""
        return self._listeners[node].port()

    def streams(self) -> dict[str, int]:
        """Count the open streams (logs, exec, attach, port-forward) of each virtual node."""
        return {node: listener.site.streams for node, listener in self._listeners.items()}
