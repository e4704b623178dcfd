"""Python stubs of the control plane, made from the .proto files when a test starts."""
import os
import shutil
import subprocess
import sys
import tempfile


def generate(proto_dir, grpc_proto_dir):
    """Makes the stubs in a temporary folder, puts it on the path, returns it. Exit 77 without Debian's packages."""
    try:
        import grpc  # noqa: F401
        import grpc_tools  # noqa: F401
    except ImportError as e:
        print(f"skipped: {e} (python3-grpcio, python3-grpc-tools)")
        sys.exit(77)
    out = tempfile.mkdtemp(prefix="penstock-stubs-")
    names = ["admin", "capability", "common", "namespace", "session", "status"]
    files = [f"penstock/v1/{n}.proto" for n in names]
    # Names of their own: a folder "grpc" would hide the module.
    others = {"health.proto": "grpc/health/v1/health.proto",
              "reflection_v1.proto": "grpc/reflection/v1/reflection.proto",
              "reflection_v1alpha.proto": "grpc/reflection/v1alpha/reflection.proto"}
    for name, source in others.items():
        shutil.copy(os.path.join(grpc_proto_dir, source), os.path.join(out, name))
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I", proto_dir, "-I", out, f"--python_out={out}",
                    f"--grpc_python_out={out}", *files, *others], check=True)
    sys.path.insert(0, out)
    return out
