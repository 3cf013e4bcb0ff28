"""What tests share: small networks and bundles, processes, exact laws by enumeration, tiny training runs."""
