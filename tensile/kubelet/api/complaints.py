"""Tells why callers did not get in, where whoever runs the engine can read it.

A caller that is turned away learns little, and the person at kubectl sees "unauthorized" or "bad certificate" of an
apiserver that had nothing to say about our side. So the reason, and what would help, goes to our log: once in ten
minutes each, because who is turned away comes again.
"""

import ssl
from collections.abc import Callable
from http import HTTPStatus

from tensile.kubelet.api.refusal import Refused
from tensile.kubelet.api.target import Log
from tensile.kubelet.api.verdicts import Verdicts

AGAIN_SECONDS = 600.0
_REMEMBERED = 256
_CLIENT_CERTIFICATE = "the upper's apiserver shows the one of its --kubelet-client-certificate"
_BINDING = "if that is the upper's apiserver, bind this user to ClusterRole system:kubelet-api-admin"


class Complaints:
    """Remembers what was said, and says it again only after a while; `clock` gives seconds."""

    def __init__(self, log: Log, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._said: Verdicts[tuple[str, str], bool] = Verdicts(_REMEMBERED)

    def handshake(self, node: str, error: OSError, shown: str, authority: str) -> None:
        """Tell of a connection that TLS ended, unless the caller just left.

        `shown` describes our certificate, `authority` says where that of callers is read.
        """
        if isinstance(error, ssl.SSLCertVerificationError):
            advice = f"{authority} has to hold the authority that signed it: {_CLIENT_CERTIFICATE}"
            self._say(node, f"a caller's certificate was not accepted ({error.verify_message})", advice)
        elif isinstance(error, ssl.SSLError) and _is_about_us(error.reason or ""):
            advice = (
                "if that was the upper's apiserver, its --kubelet-certificate-authority has to hold the issuer, "
                f"and the certificate must name the address called and be in date; shown was: {shown}"
            )
            self._say(node, f"a caller did not accept the serving certificate ({_alert(error)})", advice)

    def refused(self, node: str, refused: Refused, *, named: bool) -> None:
        """Tell of a request that was not let in; `named`: its sender showed a certificate or a token."""
        if refused.status == HTTPStatus.FORBIDDEN:
            self._say(node, refused.message, _BINDING)
        elif refused.status == HTTPStatus.TOO_MANY_REQUESTS:
            self._say(node, refused.message, "it shows ever other tokens, or asks for what it may not: look who it is")
        elif refused.status == HTTPStatus.UNAUTHORIZED and not named:
            advice = f"{_CLIENT_CERTIFICATE}; others send a token that the upper cluster knows"
            self._say(node, "a caller showed neither certificate nor token", advice)
        elif refused.status == HTTPStatus.UNAUTHORIZED:
            self._say(node, "a caller's token or certificate names nobody that the upper cluster knows", "give another")

    def _say(self, node: str, why: str, advice: str) -> None:
        now = self._clock()
        if self._said.get((node, why), now) is None:
            self._said.put((node, why), True, now + AGAIN_SECONDS)
            self._log.warning("a caller of the kubelet API was turned away", node=node, why=why, advice=advice)


def _is_about_us(reason: str) -> bool:
    """Say whether the caller ended TLS because of our certificate: Go says "bad certificate" whatever it disliked."""
    return "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)


def _alert(error: ssl.SSLError) -> str:
    return (error.reason or "").partition("ALERT_")[2].replace("_", " ").lower()
