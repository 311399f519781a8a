"""The wing of teams: people who sign in, their roles and shares, a directory by SCIM, and the audit trail."""
