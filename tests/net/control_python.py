#!/usr/bin/python3
"""Calls every method of the C control server with Debian's python3-grpcio.

usage: control_python.py CTL_SERVER PROTO_DIR GRPC_PROTO_DIR [test ...]
"""
import os
import shutil
import sys
import threading
import unittest

import control_stubs

STUBS = control_stubs.generate(sys.argv[2], sys.argv[3])

import control_server  # noqa: E402
from control_case import Case  # noqa: E402
from control_names import Namespace, Stream  # noqa: E402
from control_server import Recorder  # noqa: E402
from control_services import Calls, Capabilities, Status  # noqa: E402
from control_sessions import Admin, Creds, Sessions  # noqa: E402

control_server.EXE = os.path.abspath(sys.argv[1])
control_server.SCRATCH = STUBS


class ZLast(Case):
    def test_every_method_was_called(self):
        if len(sys.argv) > 4:
            self.skipTest("only some tests were asked for")
        self.assertEqual(Status.all_methods - Recorder.called, set())


def main():
    # The order of the file, so that the last test sees what all others did.
    loader = unittest.TestLoader()
    classes = [Sessions, Creds, Admin, Namespace, Stream, Capabilities, Status, Calls, ZLast]
    suite = unittest.TestSuite(loader.loadTestsFromTestCase(c) for c in classes)
    if len(sys.argv) > 4:
        suite = loader.loadTestsFromNames(sys.argv[4:], sys.modules[__name__])
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    shutil.rmtree(STUBS, ignore_errors=True)
    sys.exit(not result.wasSuccessful())


threading.excepthook = lambda args: None if args.exc_type is ValueError else sys.__excepthook__(*args[:3])
main()
