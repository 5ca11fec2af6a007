"""Notices by e-mail. `smtplib` blocks, so it works aside, and is cut off when its time is over."""

from __future__ import annotations

import contextlib
import os
import smtplib
import socket
import ssl
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime

from jobs.alertspec import Sink
from jobs.controller.notify.aside import Aside
from jobs.controller.notify.notice import Failed, Notice
from jobs.controller.notify.references import References, hidden
from jobs.controller.notify.words import clean, message, subject

STEP_SECONDS = 10.0
"""Any one exchange with the server."""
WHOLE_SECONDS = 40.0
EVIDENCE_SHOWN = 20
_PORTS = {"starttls": 587, "tls": 465, "none": 25}


class Mail:
    """One SMTP server, and to whom it is to be given."""

    limit_seconds = WHOLE_SECONDS + 5 + 5
    """With the time for its secrets."""

    def __init__(
        self,
        sink: Sink,
        cluster: str,
        environ: Mapping[str, str] = os.environ,
        tls_context: Callable[[], ssl.SSLContext] = ssl.create_default_context,
    ) -> None:
        self._sink = sink
        self._cluster = cluster
        self._references = References(environ)
        self._tls_context = tls_context
        self._aside = Aside("the mail server")
        self.where = f"email {sink.name}"

    async def send(self, notice: Notice) -> str:
        """One try. Raises `Failed`."""
        user, password = await self._references.resolve(self._sink.user, self._sink.password)
        letter = self.letter(notice)
        session = _Session()
        return await self._aside.do(lambda: self._deliver(session, letter, user, password), WHOLE_SECONDS, session.cut)

    def letter(self, notice: Notice) -> EmailMessage:
        """What is sent. All letters of one alert hang together, by the name of the first."""
        sink = self._sink
        assert sink.sender is not None
        domain = sink.sender.rpartition("@")[2]
        letter = EmailMessage(policy=SMTP)
        letter["Subject"] = subject(notice)
        letter["From"] = sink.sender
        letter["To"] = ", ".join(sink.to)
        letter["Date"] = format_datetime(datetime.fromtimestamp(notice.at, timezone.utc))
        first = f"<raydeck.{_atom(notice.alert.id)}.{int(notice.alert.since)}@{domain}>"
        if notice.reply:
            letter["Message-ID"] = f"<raydeck.{_atom(notice.key)}.{notice.kind}@{domain}>"
            letter["In-Reply-To"] = first
            letter["References"] = first
        else:
            letter["Message-ID"] = first
        letter["Auto-Submitted"] = "auto-generated"
        letter["X-Raydeck-Key"] = _atom(notice.key)
        evidence = [f"  {clean(line)}" for line in notice.alert.evidence[:EVIDENCE_SHOWN]]
        body = [message(notice, self._cluster), *(["", "evidence:", *evidence] if evidence else [])]
        letter.set_content("\n".join(body) + "\n")
        return letter

    def _deliver(self, session: _Session, letter: EmailMessage, user: str, password: str) -> str:
        sink, host = self._sink, self._sink.host or ""
        port = sink.port or _PORTS[sink.tls]
        place, secrets = f"{host}:{port}", (password, user)
        try:
            server = session.open(host, port, self._tls_context() if sink.tls == "tls" else None)
            try:
                if sink.tls == "starttls":
                    server.starttls(context=self._tls_context())
                if user:
                    server.login(user, password)
                refused = server.send_message(letter)
            finally:
                session.end()
        except smtplib.SMTPAuthenticationError as error:
            raise Failed(
                f"{place} refuses the user and the password ({error.smtp_code})", again=error.smtp_code < 500
            ) from None
        except smtplib.SMTPRecipientsRefused as error:
            codes = sorted({code for code, _ in error.recipients.values()})
            again = any(code < 500 for code in codes)
            raise Failed(
                f"{place} takes mail for none of those it is to ({', '.join(map(str, codes))})", again=again
            ) from None
        except smtplib.SMTPNotSupportedError as error:
            raise Failed(f"{place}: {clean(hidden(str(error), secrets), 120)}", again=False) from None
        except smtplib.SMTPResponseException as error:
            said = (
                error.smtp_error.decode("utf-8", "replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
            )
            raise Failed(
                f"{place} answers {error.smtp_code}: {clean(hidden(said, secrets), 120)}", again=error.smtp_code < 500
            ) from None
        except ssl.SSLCertVerificationError:
            raise Failed(f"{place} shows a certificate that this machine does not trust") from None
        except (smtplib.SMTPException, OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise Failed(f"{place} cannot be used: {why}") from None
        if refused:
            return f"{place} took it, but not for {len(refused)} of {len(sink.to)}"
        return f"{place} took it"


class _Session:
    """A connection that another thread may cut."""

    def __init__(self) -> None:
        self._server: smtplib.SMTP | None = None

    def open(self, host: str, port: int, tls: ssl.SSLContext | None) -> smtplib.SMTP:
        """Connects. Raises as `smtplib` does."""
        if tls is not None:
            server: smtplib.SMTP = smtplib.SMTP_SSL(timeout=STEP_SECONDS, context=tls)
        else:
            server = smtplib.SMTP(timeout=STEP_SECONDS)
        # Made unconnected, so that it can be cut while it connects; the name for the certificate is then still unknown.
        server._host = host  # pyright: ignore[reportAttributeAccessIssue]
        self._server = server
        code, said = server.connect(host, port)
        if code != 220:
            raise smtplib.SMTPConnectError(code, said)
        return server

    def end(self) -> None:
        """Says goodbye, if anybody listens."""
        if self._server is None:
            return
        with contextlib.suppress(smtplib.SMTPException, OSError):
            self._server.quit()
        self._server.close()

    def cut(self) -> None:
        """Ends whatever it waits for."""
        connection = self._server.sock if self._server is not None else None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _atom(text: str) -> str:
    return "".join(sign if sign.isascii() and (sign.isalnum() or sign in "-._") else "_" for sign in text[:120])
