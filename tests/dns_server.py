"""A small DNS server for SRV records, over real UDP and TCP sockets on one free port.

Answers that do not fit into a datagram are cut with the TC bit, so that a client has to come back by TCP.
Prevents: a resolver that was only ever tried with small answers.
Source: RFC 1035, RFC 2782.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import cast

import dns.flags
import dns.message
import dns.rcode
import dns.rrset

_UDP_BYTES = 512


class DnsServer(asyncio.DatagramProtocol):
    """SRV records by name: (target, port). Names that are not there do not exist."""

    def __init__(self) -> None:
        self.records: dict[str, list[tuple[str, int]]] = {}
        self.is_silent = False
        self.asked = 0
        self.by_tcp = 0
        self.port = 0
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.asked += 1
        if self.is_silent or self._transport is None:
            return
        answer = self.answer(data)
        wire = answer.to_wire(max_size=65_535)
        if len(wire) > _UDP_BYTES:
            answer.answer.clear()
            answer.flags |= dns.flags.TC
            wire = answer.to_wire()
        self._transport.sendto(wire, addr)

    def answer(self, data: bytes) -> dns.message.Message:
        query = dns.message.from_wire(data)
        answer = dns.message.make_response(query)
        name = query.question[0].name
        found = self.records.get(name.to_text(omit_final_dot=True))
        if found is None:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        elif found:
            texts = [f"0 0 {port} {target}." for target, port in found]
            answer.answer.append(dns.rrset.from_text(name, 30, "IN", "SRV", *texts))
        return answer

    async def tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            (size,) = struct.unpack("!H", await reader.readexactly(2))
            wire = self.answer(await reader.readexactly(size)).to_wire(max_size=65_535)
            self.by_tcp += 1
            writer.write(struct.pack("!H", len(wire)) + wire)
            await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def dns_server() -> AsyncGenerator[DnsServer]:
    """Serve one on a free port of 127.0.0.1."""
    server = DnsServer()
    tcp = await asyncio.start_server(server.tcp, "127.0.0.1", 0)
    server.port = tcp.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(
        lambda: server, local_addr=("127.0.0.1", server.port)
    )
    try:
        yield server
    finally:
        transport.close()
        tcp.close()
        await tcp.wait_closed()
        await asyncio.sleep(0)
