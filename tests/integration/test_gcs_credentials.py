"""Every way to an identity on GCS, against a token service of a test's own: what is asked of it, and what requests then carry."""

import json
import os
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import google.auth._exponential_backoff
import google.auth.compute_engine._metadata
import google.auth.iam
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from framework.errors import ConfigError, CredentialsError, StoreUnavailableError
from framework.testing.faults import Fault, FaultProxy
from framework.testing.servers.ports import free_port
from gcs_source import google_session
from gcs_source.client import GcsStore
from gcs_source.google_session import proxies_for
from tests.support.gcs import gcs_refusal
from tests.support.reading import only, read

ACCOUNT = "reader@project.iam.gserviceaccount.com"


class TokenService:
    """Gives tokens t1, t2 ... to who asks for one, or refuses; remembers what it was asked.

    It is every service on the way to a token: Google's, a platform's that gives subject tokens, a machine's metadata.
    """

    def __init__(self):
        outer = self
        self.asked = []
        self.refuses = None
        self.answers = {}  # by a part of the path: (status, body) in place of the right one

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                sent = self.rfile.read(int(self.headers.get("content-length", 0)))
                outer.asked.append((self.path, sent.decode(), self.headers.get("authorization", "")))
                status, body = 400 if outer.refuses else 200, json.dumps(outer.refuses or outer.token()).encode()
                status, body = next(
                    (outer.answers[part] for part in outer.answers if part in self.path), (status, body)
                )
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_CONNECT = do_POST  # noqa: N815 - http.server's name

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def token(self):
        name = f"t{len(self.asked)}"
        lasts = {"expires_in": 3600, "expireTime": "2099-01-01T00:00:00Z"}
        kinds = {"token_type": "Bearer", "issued_token_type": "x", "email": ACCOUNT}
        return {"access_token": name, "accessToken": name, **kinds, **lasts}

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def tokens():
    service = TokenService()
    yield service
    service.close()


@pytest.fixture(scope="module")
def private_key():
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form, without = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, without).decode()


@pytest.fixture
def key_file(tmp_path, tokens, private_key):
    """A service account's key, as Google gives it."""
    info = {
        "type": "service_account",
        "project_id": "project",
        "private_key_id": "1",
        "private_key": private_key,
        "client_email": "key@project.iam.gserviceaccount.com",
        "token_uri": f"{tokens.endpoint}/token",
    }
    file = tmp_path / "key.json"
    file.write_text(json.dumps(info))
    return file


@pytest.fixture
def workload_file(tmp_path, tokens):
    """A configuration of workload identity: a token of the platform, in a file, is exchanged for one of Google's."""
    (tmp_path / "platform-token").write_text("of-the-platform")
    info = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/x",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{tokens.endpoint}/v1/token",
        "credential_source": {"file": str(tmp_path / "platform-token")},
    }
    file = tmp_path / "workload.json"
    file.write_text(json.dumps(info))
    return file


@pytest.fixture
def sent_by(gcs_bucket):
    """The authorisations of a listing and a read, with some options."""
    gcs_bucket.put("k", b"content")

    def run(**options):
        with FaultProxy(gcs_bucket.endpoint) as proxy:
            store = GcsStore(gcs_bucket.config(endpoint=proxy.endpoint, anonymous=False, **options))
            try:
                assert read(store, only(store)) == b"content"
                said = store.identity()
            finally:
                store.close()
            return [one.headers.get("authorization") for one in proxy.requests], said

    return run


def test_a_key_file(sent_by, key_file, tokens):
    sent, said = sent_by(credentials_file=str(key_file))
    assert sent == ["Bearer t1", "Bearer t1"]
    ((path, body, _),) = tokens.asked
    assert path == "/token"
    assert "jwt-bearer" in parse_qs(body)["grant_type"][0]
    assert said == "key@project.iam.gserviceaccount.com, by the file of gcs.credentials_file"


def test_the_application_default(sent_by, key_file, monkeypatch):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key_file))
    sent, said = sent_by()
    assert sent == ["Bearer t1", "Bearer t1"]
    assert said.endswith("Google's application default")


@pytest.mark.parametrize("how", ["option", "environment"])
def test_workload_identity(sent_by, workload_file, tokens, monkeypatch, how):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(workload_file))
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)  # nothing asks Google for it, either
    sent, _ = sent_by(**({"credentials_file": str(workload_file)} if how == "option" else {}))
    assert sent == ["Bearer t1", "Bearer t1"]
    ((path, body, _),) = tokens.asked
    assert path == "/v1/token"
    assert parse_qs(body)["subject_token"] == ["of-the-platform"]


def test_a_login_of_a_workforce(sent_by, tokens, tmp_path):
    """As gcloud auth application-default login writes it for a workforce identity."""
    info = {
        "type": "external_account_authorized_user",
        "audience": "//iam.googleapis.com/locations/global/workforcePools/p/providers/x",
        "client_id": "id",
        "client_secret": "secret",
        "refresh_token": "r",
        "token_url": f"{tokens.endpoint}/v1/oauthtoken",
    }
    file = tmp_path / "login.json"
    file.write_text(json.dumps(info))
    assert sent_by(credentials_file=str(file))[0] == ["Bearer t1", "Bearer t1"]
    ((path, body, _),) = tokens.asked
    assert path == "/v1/oauthtoken"
    assert parse_qs(body)["refresh_token"] == ["r"]


def test_workload_identity_that_acts_as_an_account(sent_by, workload_file, tokens, monkeypatch):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(workload_file))
    address = f"{tokens.endpoint}/v1/projects/-/serviceAccounts/{{}}:generateAccessToken"
    monkeypatch.setattr(google.auth.iam, "_IAM_ENDPOINT", address)
    assert sent_by(impersonate=ACCOUNT)[0] == ["Bearer t2", "Bearer t2"]
    assert tokens.asked[0][0] == "/v1/token"


def test_workload_identity_that_lacks_something_is_told(gcs_bucket, workload_file, monkeypatch):
    info = json.loads(workload_file.read_text())
    del info["credential_source"]
    workload_file.write_text(json.dumps(info))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(workload_file))
    with pytest.raises(CredentialsError, match=r"GOOGLE_APPLICATION_CREDENTIALS: .*workload\.json cannot be used"):
        GcsStore(gcs_bucket.config(anonymous=False))


def test_an_emulator_is_given_no_workload_identity(gcs_bucket, workload_file, tokens, monkeypatch):
    gcs_bucket.put("k", b"content")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(workload_file))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_bucket.endpoint)
    store = GcsStore(gcs_bucket.config(anonymous=False, endpoint=""))
    assert read(store, only(store)) == b"content"
    store.close()
    assert tokens.asked == []


def test_impersonation(sent_by, key_file, tokens, monkeypatch):
    address = f"{tokens.endpoint}/v1/projects/-/serviceAccounts/{{}}:generateAccessToken"
    monkeypatch.setattr(google.auth.iam, "_IAM_ENDPOINT", address)
    sent, said = sent_by(credentials_file=str(key_file), impersonate=ACCOUNT)
    assert sent == ["Bearer t2", "Bearer t2"]
    (own, other) = tokens.asked
    assert own[0] == "/token"
    assert other[0] == f"/v1/projects/-/serviceAccounts/{ACCOUNT}:generateAccessToken"
    assert other[2] == "Bearer t1"
    assert "devstorage.read_only" in other[1]
    assert said.startswith(ACCOUNT)


def test_without_an_identity_nothing_is_asked_and_nothing_sent(gcs_bucket, key_file, tokens, monkeypatch):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key_file))
    gcs_bucket.put("k")
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        store = GcsStore(gcs_bucket.config(endpoint=proxy.endpoint))
        read(store, only(store))
        store.close()
        assert [one.headers.get("authorization") for one in proxy.requests] == [None, None]
    assert tokens.asked == []


def test_a_token_that_is_refused_in_mid_run_is_renewed_from_the_file(gcs_bucket, key_file, tokens):
    gcs_bucket.put("k", b"content")
    with FaultProxy(gcs_bucket.endpoint) as proxy:
        store = GcsStore(gcs_bucket.config(endpoint=proxy.endpoint, anonymous=False, credentials_file=str(key_file)))
        native = only(store)
        proxy.add(Fault(path="/download/", **gcs_refusal(401, "authError")))
        assert read(store, native) == b"content"
        store.close()
        assert [one.headers["authorization"] for one in proxy.requests] == ["Bearer t1", "Bearer t1", "Bearer t2"]
    assert len(tokens.asked) == 2


def test_a_key_that_has_expired_or_was_deleted_is_told(gcs_bucket, key_file, tokens):
    tokens.refuses = {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
    store = GcsStore(gcs_bucket.config(anonymous=False, credentials_file=str(key_file)))
    with pytest.raises(
        CredentialsError, match=r"no token for these credentials; check gcs\.credentials_file.*invalid_grant"
    ) as told:
        store.list_page()
    store.close()
    assert "PRIVATE KEY" not in str(told.value)


def test_a_clock_that_is_off_is_named_and_waited_for(gcs_bucket, key_file, tokens):
    tokens.refuses = {
        "error": "invalid_grant",
        "error_description": "Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe."
        " Check your iat and exp values in the JWT claim.",
    }
    store = GcsStore(gcs_bucket.config(anonymous=False, credentials_file=str(key_file)))
    with pytest.raises(StoreUnavailableError, match=r"the clock of this machine is off; set it .*invalid_grant"):
        store.list_page()
    store.close()


def test_a_token_service_that_is_down_is_tried_again(gcs_bucket, key_file):
    info = json.loads(key_file.read_text())
    key_file.write_text(json.dumps(info | {"token_uri": f"http://127.0.0.1:{free_port()}/token"}))
    store = GcsStore(gcs_bucket.config(anonymous=False, credentials_file=str(key_file)))
    with pytest.raises(StoreUnavailableError, match="token service"):
        store.list_page()
    store.close()


@pytest.fixture
def store_by(gcs_bucket, key_file, workload_file, tokens, monkeypatch):
    """A store for each way to a token, and the part of the paths of the service that gives it."""

    def make(way, **options):
        chosen, credentials, path = {"credentials_file": str(workload_file)}, None, "/v1/token"
        if way == "key":
            chosen, path = {"credentials_file": str(key_file)}, "/token"
        if way == "subject":
            path = "/subject"
            info = json.loads(workload_file.read_text()) | {"credential_source": {"url": f"{tokens.endpoint}{path}"}}
            workload_file.write_text(json.dumps(info))
        if way == "impersonation":
            path = "generateAccessToken"
            monkeypatch.setattr(google.auth.iam, "_IAM_ENDPOINT", f"{tokens.endpoint}/{{}}:{path}")
            chosen["impersonate"] = ACCOUNT
        if way == "metadata":
            host, path = urlsplit(tokens.endpoint).netloc, "/computeMetadata"
            monkeypatch.setenv("GCE_METADATA_HOST", host)
            monkeypatch.setattr(google.auth.compute_engine._metadata, "_GCE_METADATA_HOST", host)
            chosen, credentials = {}, google.auth.compute_engine.Credentials(universe_domain="googleapis.com")
        return GcsStore(gcs_bucket.config(anonymous=False, **chosen, **options), credentials), path

    return make


WAYS = ["key", "workload", "subject", "impersonation", "metadata"]
SPOILT = [b"<html>log in first</html>", b"[]", b"{}", b'{"access_token": "t", "accessToken": "t", "email": "x"}']


@pytest.mark.parametrize("status", [503, 500, 429, 408])
@pytest.mark.parametrize("way", WAYS)
def test_a_token_service_that_fails_once_is_asked_again(way, status, store_by, tokens):
    store, path = store_by(way)
    tokens.answers[path] = (status, b'{"error": {"code": 503, "message": "unavailable"}}')
    name = "metadata service" if way == "metadata" else "token service"
    with pytest.raises(StoreUnavailableError, match=rf"{name} at 127\.0\.0\.1:\d+ did not .*HTTP {status}") as told:
        store.list_page()
    assert "asked was" not in str(told.value)  # the store was not
    tokens.answers.clear()
    store.list_page()
    store.close()


@pytest.mark.parametrize("body", SPOILT)
@pytest.mark.parametrize("way", ["key", "workload", "impersonation", "metadata"])  # any text may be a subject's
def test_a_token_service_whose_answer_is_none_is_asked_again(way, body, store_by, tokens):
    store, path = store_by(way)
    tokens.answers[path] = (200, body)
    if way != "key" or b"access_token" not in body:  # a key's token may come without its end
        with pytest.raises(StoreUnavailableError, match="gave no valid answer"):
            store.list_page()
    tokens.answers.clear()
    store.list_page()
    store.close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("limit", ["_MAX_ANSWER_BYTES", "_MAX_ANSWER_SECONDS"])
def test_a_token_service_whose_answer_does_not_end_is_an_outage(way, limit, store_by, tokens, monkeypatch):
    store, _ = store_by(way)
    monkeypatch.setattr(google_session, limit, 0)
    with pytest.raises(StoreUnavailableError, match=r"service at 127\.0\.0\.1:\d+ .*an answer of more than"):
        store.list_page()
    store.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_token_service_that_refuses_is_not_asked_again(way, store_by, tokens):
    store, path = store_by(way)
    tokens.answers[path] = (403, b'{"error": {"code": 403, "message": "not for you", "status": "PERMISSION_DENIED"}}')
    with pytest.raises(CredentialsError, match=r"attribute condition" if way == "workload" else "gave no token"):
        store.list_page()
    store.close()


def test_a_silent_token_service_holds_a_check_up_no_longer_than_read_timeout(gcs_bucket, key_file):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the system takes the connection
        info = json.loads(key_file.read_text())
        key_file.write_text(json.dumps(info | {"token_uri": f"http://127.0.0.1:{silent.getsockname()[1]}/token"}))
        options = {"anonymous": False, "credentials_file": str(key_file), "read_timeout": 0.2}
        store = GcsStore(gcs_bucket.config(**options))
        started = time.monotonic()
        with pytest.raises(StoreUnavailableError, match="token service at 127"):
            store.identity()
        store.close()
        assert time.monotonic() - started < 30  # google-auth's own limit is two minutes


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("oauth2.test/token", "check token_uri, token_url and credential_source in the file"),
        ("file:///token", "check token_uri, token_url and credential_source in the file"),
        ("https://{host}/token", r"certificate of the token service at .* check gcs\.ca_bundle"),
    ],
)
def test_what_stays_wrong_with_a_token_service_names_what_to_change(address, advice, gcs_bucket, key_file, tokens):
    info = json.loads(key_file.read_text())
    key_file.write_text(json.dumps(info | {"token_uri": address.format(host=urlsplit(tokens.endpoint).netloc)}))
    store = GcsStore(gcs_bucket.config(anonymous=False, credentials_file=str(key_file)))
    with pytest.raises(ConfigError, match=advice):
        store.list_page()
    store.close()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_wants_a_password_for_token_requests_is_told(scheme, gcs_bucket, key_file, tokens):
    tokens.answers["oauth2.test"] = (407, b"who")
    info = json.loads(key_file.read_text())
    key_file.write_text(json.dumps(info | {"token_uri": f"{scheme}://oauth2.test:443/token"}))
    options = {"anonymous": False, "credentials_file": str(key_file), "proxy": tokens.endpoint}
    store = GcsStore(gcs_bucket.config(**options))
    with pytest.raises(ConfigError, match=r"give gcs\.proxy as http://user:password@"):
        store.list_page()
    store.close()


@pytest.fixture
def no_credentials(monkeypatch, tmp_path):
    """A machine without any, whose search for a metadata service ends at once."""
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST", "NO_GCE_CHECK", "GCE_METADATA_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("GCE_METADATA_IP", "")
    monkeypatch.setattr(google.auth.compute_engine._metadata, "is_on_gce", lambda request: False)


def test_a_machine_without_credentials_is_told_so(gcs_bucket, no_credentials):
    with pytest.raises(CredentialsError, match="no credentials were found"):
        GcsStore(gcs_bucket.config(anonymous=False))


@pytest.mark.parametrize("options", [{}, {"impersonate": ACCOUNT}])
def test_a_metadata_service_that_is_not_up_yet_is_waited_for(options, gcs_bucket, no_credentials, monkeypatch):
    monkeypatch.setenv("GCE_METADATA_HOST", "metadata.test:8080")
    with pytest.raises(StoreUnavailableError, match=r"metadata service at metadata\.test:8080 .*: curl -H"):
        GcsStore(gcs_bucket.config(anonymous=False, **options))


def test_a_metadata_service_that_goes_away_during_the_start_is_named(gcs_bucket, no_credentials, monkeypatch):
    """As on a machine of Google's, which google-auth knows by its hardware: it asks once more after it found it."""
    metadata, port = google.auth.compute_engine._metadata, free_port()
    monkeypatch.setattr(metadata, "is_on_gce", lambda request: True)
    monkeypatch.setattr(metadata, "get_project_id", lambda request: None)
    monkeypatch.setattr(metadata, "_GCE_METADATA_HOST", f"127.0.0.1:{port}")
    monkeypatch.setattr(google.auth._exponential_backoff.time, "sleep", lambda seconds: None)
    monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{port}")
    with pytest.raises(StoreUnavailableError, match=rf"metadata service at 127\.0\.0\.1:{port} cannot be reached"):
        GcsStore(gcs_bucket.config(anonymous=False))


def test_a_subject_token_that_is_not_there_yet_is_waited_for(store_by, tmp_path):
    store, _ = store_by("workload")
    (tmp_path / "platform-token").rename(tmp_path / "later")
    with pytest.raises(StoreUnavailableError, match=r"check credential_source .*platform-token"):
        store.list_page()
    (tmp_path / "later").rename(tmp_path / "platform-token")
    store.list_page()
    store.close()


@pytest.fixture
def store_behind_proxy(gcs_bucket, key_file, tokens, monkeypatch):
    """A store with a proxy of its own, which answers as the token service does; what that was asked is in its requests."""
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")  # what is configured comes first

    def make(token_uri):
        info = json.loads(key_file.read_text()) | {"token_uri": token_uri}
        key_file.write_text(json.dumps(info))
        options = {"anonymous": False, "credentials_file": str(key_file), "proxy": proxy.endpoint}
        return GcsStore(gcs_bucket.config(**options)), proxy

    with FaultProxy(tokens.endpoint) as proxy:
        yield make


def test_tokens_are_asked_for_through_the_configured_proxy(store_behind_proxy):
    store, proxy = store_behind_proxy("http://oauth2.test/token")
    store.identity()
    store.close()
    (request,) = proxy.requests
    assert request.path == "http://oauth2.test/token"


@pytest.mark.parametrize("excepted", ["localhost", "oauth2.test"])
def test_tokens_of_this_machine_and_of_no_proxy_are_asked_for_directly(
    excepted, store_behind_proxy, tokens, monkeypatch
):
    monkeypatch.setenv("NO_PROXY", "oauth2.test")
    port = urlsplit(tokens.endpoint).port
    store, proxy = store_behind_proxy(f"http://{excepted}:{port}/token")
    if excepted == "localhost":
        store.identity()
        assert tokens.asked
    else:
        with pytest.raises(StoreUnavailableError, match=r"oauth2\.test:\d+ cannot be reached"):  # no such name
            store.list_page()
    store.close()
    assert proxy.requests == []


@pytest.mark.parametrize(
    "host", ["metadata.google.internal", "169.254.169.254", "[fe80::1]", "[fd20:ce::254]", "metadata.test"]
)
def test_a_metadata_service_is_asked_directly(host, monkeypatch):
    """A proxy would give the token of its own machine."""
    monkeypatch.setenv("GCE_METADATA_HOST", "metadata.test:8080")
    monkeypatch.setenv("HTTP_PROXY", "http://environment.test")
    assert proxies_for(f"http://{host}/computeMetadata/v1/x", "http://configured.test") == {"http": None, "https": None}


def test_other_services_are_asked_through_the_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "")
    configured = dict.fromkeys(("http", "https"), "http://configured.test")
    assert proxies_for("https://sts.googleapis.com/v1/token", "http://configured.test") == configured
    assert proxies_for("https://sts.googleapis.com/v1/token", "") == {}  # requests looks at the environment


@pytest.mark.parametrize("how", ["option", "environment"])
def test_a_file_of_credentials_is_no_pipe(how, gcs_bucket, tmp_path, monkeypatch):
    file = tmp_path / "key.json"
    os.mkfifo(file)
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file) if how == "environment" else "")
    chosen = {"credentials_file": str(file)} if how == "option" else {}
    with pytest.raises(CredentialsError, match=r"key\.json cannot be read \(it is a pipe, not a file, and is read"):
        GcsStore(gcs_bucket.config(anonymous=False, **chosen)).identity()
