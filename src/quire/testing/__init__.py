"""What tests of Quire, and of backends for Quire, can use: throwaway databases and the backend contract."""
