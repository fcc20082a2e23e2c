"""Prints when each knew of the co-tenant that `run` provokes, from what `run` left in its folder.

delays.py FOLDER SECONDS_FROM_START_TO_CAUSE MIB_PER_SECOND
"""
import datetime
import json
import re
import sys

folder, begins, mib_per_s = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])


def read(name):
    with open(f"{folder}/{name}", encoding="utf-8") as file:
        return file.read()


def sample(page, name, *labels):
    """The value of the first sample of `name` with all of `labels`."""
    lines = (line for line in page.splitlines() if re.match(rf"{name}[ {{]", line))
    return next(float(line.split(" ")[-1]) for line in lines if all(label in line for label in labels))


def unix(text):
    """An RFC 3339 time in UTC, which may have nine decimals."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    moment = datetime.datetime.strptime(whole, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=datetime.timezone.utc)
    return moment.timestamp() + float(f"0.{fraction or 0}")


def precursors(alerts):
    return [alert for alert in alerts if alert["labels"]["alertname"] == "GpuadmitOomPrecursor"]


page = read("page")
cause = sample(page, "process_start_time_seconds") + begins
event = sample(page, "gpuadmit_event_last_timestamp_seconds", 'kind="CO_TENANT_GROWTH"')
alerts = precursors(json.loads(read("alerts.json"))["data"]["alerts"])
received = precursors(json.loads(read("alertmanager.json")))
assert len(alerts) == len(received) == 1, f"one cause is one alert, not {len(alerts)} and {len(received)}"
active = unix(alerts[0]["activeAt"])
paged = next(float(line.split(" ")[0]) for line in read("receiver.log").splitlines() if "GpuadmitOomPrecursor" in line)
device = f'device="{alerts[0]["labels"]["device"]}"'
free = sample(read("before"), "gpuadmit_device_memory_bytes", device, 'part="free"') / 2**20

print(f"a co-tenant begins to take {mib_per_s:.0f} MiB/s of the {free:.0f} MiB that are free   0.0 s")
for what, when in [
    ("gpuadmitd tells CO_TENANT_GROWTH", event),
    ("Prometheus fires GpuadmitOomPrecursor", active),
    ("Alertmanager has told the pager", paged),
    ("nothing is free any more", cause + free / mib_per_s),
]:
    print(f"{what:<58} {when - cause:6.1f} s")
assert cause <= event <= active <= paged < cause + free / mib_per_s, "somebody knew too late, or too early"
