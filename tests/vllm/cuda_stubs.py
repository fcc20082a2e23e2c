"""Lets PyPI's CUDA build of torch be imported on a machine without any CUDA library.

usage: cuda_stubs.py SITE_PACKAGES   (needs gcc and readelf)

torch's shared libraries are linked against CUDA libraries that come in gigabytes of further packages. For each of
those a stub is compiled beside torch's own: every symbol that torch imports becomes a function that returns
cudaErrorNoDevice, so that torch finds no device and uses the CPU.
"""

import glob
import os
import re
import subprocess
import sys
import tempfile

SYSTEM = re.compile(r"^(ld-linux|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|gomp|util)\.so)")
SYSTEM_VERSIONS = ("GLIBC", "GCC", "CXXABI", "OMP", "GOMP")
CUDA_NAME = re.compile(r"(cu[a-z]*[A-Z]|nv[a-zA-Z]+|nccl)")
# Called while torch is being loaded or on its error paths: these must not fail.
SUCCEEDS = re.compile(r"^(__cuda|cudaGetLastError|cudaPeekAtLastError|cupti|cudaProfiler)")
RETURNS_TEXT = re.compile(r"([gG]etErrorString|GetErrorName|GetLastErrorString|GetStatusString|GetStatusName)$")
NO_DEVICE = "100"


def stem(library):
    """`libcudart.so.13` -> `cudart`."""
    return re.sub(r"\.so.*", "", library)[3:].lower()


def readelf(*arguments):
    return subprocess.run(["readelf", *arguments], capture_output=True, text=True, check=True).stdout


def symbols(library):
    """(name with version, binding, undefined?) of every dynamic symbol."""
    for line in readelf("--dyn-syms", "--wide", library).splitlines():
        fields = line.split()
        if len(fields) >= 8 and fields[0].endswith(":"):
            yield fields[7], fields[4], fields[6] == "UND"


def owner(name, version, missing):
    """The missing library that a symbol belongs to, or None."""
    if version is not None:
        for library in missing:
            if version == library or (".so" in version and stem(version) == stem(library)):
                return library
        if version.startswith(SYSTEM_VERSIONS):
            return None
    plain = name.lower().lstrip("_")
    by_prefix = [library for library in missing if plain.startswith(stem(library).replace("_host", ""))]
    if by_prefix:
        return max(by_prefix, key=len)
    if version is None and CUDA_NAME.match(name.lstrip("_")):
        return next((library for library in missing if "cudart" in library), missing[0])
    return None


def wanted(libraries, missing):
    """{missing library: {version or None: {symbol}}}."""
    defined, undefined = set(), set()
    for library in libraries:
        for name, binding, is_undefined in symbols(library):
            if is_undefined:
                undefined.add((name, binding))
            else:
                defined.add(name.split("@")[0])
    found = {library: {} for library in missing}
    for full_name, binding in undefined:
        name, _, version = full_name.replace("@@", "@").partition("@")
        version = version or None
        if version is None and (name in defined or binding == "WEAK"):
            continue
        library = owner(name, version, missing)
        if library is not None:
            found[library].setdefault(version, set()).add(name)
    return found


def result(name):
    if RETURNS_TEXT.search(name):
        return '(long)"no CUDA (stub)"'
    return "0" if SUCCEEDS.match(name) else NO_DEVICE


def build(path, versions):
    names = sorted(n for n in set().union(*versions.values()) if re.match(r"^[A-Za-z_]\w*$", n))
    with tempfile.TemporaryDirectory() as folder:
        source, script = os.path.join(folder, "stub.c"), os.path.join(folder, "stub.map")
        with open(source, "w") as file:
            file.writelines(f"long {name}(void){{return {result(name)};}}\n" for name in names)
        with open(script, "w") as file:
            for version in filter(None, versions):
                exported = " ".join(f"{name};" for name in sorted(versions[version]))
                file.write(f"{version} {{ global: {exported} }};\n")
        command = ["gcc", "-shared", "-fPIC", "-O1", "-w", "-fno-builtin", "-o", path, source]
        command.append(f"-Wl,-soname,{os.path.basename(path)}")
        if any(versions):
            command.append(f"-Wl,--version-script={script}")
        subprocess.run(command, check=True)


def main(site_packages):
    folder = os.path.join(site_packages, "torch", "lib")
    libraries = sorted(glob.glob(folder + "/*.so*"))
    present = {os.path.basename(library) for library in libraries}
    needed = set()
    for library in libraries:
        needed |= set(re.findall(r"NEEDED.*\[(.*)\]", readelf("-d", library)))
    missing = sorted(n for n in needed if n not in present and not SYSTEM.match(n))
    for library, versions in wanted(libraries, missing).items():
        build(os.path.join(folder, library), versions)


if __name__ == "__main__":
    main(*sys.argv[1:])
