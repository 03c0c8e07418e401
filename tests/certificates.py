"""A chain of real certificates, and servers' contexts with good and bad ones; made anew for every run of the tests."""

from __future__ import annotations

import functools
import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOST = "127.0.0.1"


@functools.cache
def root() -> trustme.CA:
    """The authority that clients are told to trust."""
    return trustme.CA()


@functools.cache
def _intermediate() -> trustme.CA:
    return root().create_child_ca()


def root_pem() -> str:
    return root().cert_pem.bytes().decode()


def server_context(
    name: str = HOST,
    *,
    authority: trustme.CA | None = None,
    expired: bool = False,
    version: ssl.TLSVersion | None = None,
) -> ssl.SSLContext:
    """A server's context with a leaf for `name`, signed by an intermediate of the root, or by another authority."""
    now = datetime.now(UTC)
    validity = {"not_before": now - timedelta(days=3), "not_after": now - timedelta(days=1)} if expired else {}
    leaf = (authority or _intermediate()).issue_cert(name, **validity)  # type: ignore[arg-type]
    context = _empty_context(version)
    leaf.configure_cert(context)
    return context


def self_signed_context(file: Path) -> ssl.SSLContext:
    """A server's context with a certificate that only itself vouches for; certificate and key are written to `file`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "self-signed")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(pem)
    context = _empty_context(None)
    context.load_cert_chain(file)
    return context


def _empty_context(version: ssl.TLSVersion | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if version is not None:
        context.minimum_version = context.maximum_version = version
    return context
