"""Checks of `quire doctor`: each is a function of the set-up that returns its findings, and changes nothing."""

from quire.cli.doctor_checks.checks import run_checks
from quire.cli.doctor_checks.findings import Finding, FindingStatus
from quire.cli.doctor_checks.setup import DoctorSetup, load_doctor_setup

__all__ = ["DoctorSetup", "Finding", "FindingStatus", "load_doctor_setup", "run_checks"]
