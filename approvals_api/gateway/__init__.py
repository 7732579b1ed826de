"""The only part of the API that imports temporalio: workflows started, told and looked at."""
