"""The museum: for each law a source that breaks it, and nothing else that is near.

Each is the reference with one mistake that was really made somewhere: in another project, or here while this was built.
"""

from framework.testing.rig import SourceRig
from tests.conformance.broken import crashes, delivery, listings, reading

EXHIBITS: dict[type[SourceRig], str] = {
    listings.FirstPageOnly: "L1",
    listings.IgnoresThePageSize: "L1",
    listings.NamesAnotherBucket: "L1",
    listings.GreaterOrEqual: "L2",
    listings.AfterMustExist: "L2",
    listings.BeginsAtTheFirstKey: "L2",
    listings.FoldersForPrefixes: "L3",
    listings.PrefixesForFolders: "L3",
    listings.PrefixOnTheFirstPageOnly: "L3",
    listings.MarksAreData: "L3",
    listings.StatKnowsNoEnd: "L4",
    listings.DecodesTwice: "L4",
    listings.OrderOfUtf16: "L4",
    listings.Normalises: "L4",
    listings.CutsLongKeys: "L4",
    listings.FollowsPagesForEver: "L5",
    listings.StopsWhereItStands: "L5",
    listings.PartitionByPlaceInListing: "L6",
    reading.OneDoneIsNotBegun: "I1",
    reading.ResumeSkipsOne: "I1",
    reading.MarkBehindABadRecord: "I1",
    reading.ReprReads: "I2",
    reading.ReadsWholeObjects: "I3",
    reading.SharesItsPlace: "I4",
    reading.ClosesEverybodys: "I4",
    reading.ClosesNothing: "I5",
    reading.ClosesOnlyOnce: "I5",
    reading.OpenAfterErrors: "I5",
    reading.QuietAfterClose: "I5",
    reading.IgnoresTheVersion: "I6",
    reading.TimesGoBack: "I6",
    reading.PositionsOutliveVersions: "I6",
    reading.ForgetsWhatFailed: "I6",
    reading.IgnoresTheEnd: "I7",
    reading.EndIsInclusive: "I7",
    reading.ReadsMoreThanAsked: "I7",
    reading.LossyText: "T1",
    reading.CountsRecordsForBytes: "T1",
    reading.SwallowsTheEnd: "T2",
    reading.FinishedOnAReadError: "T2",
    reading.SkipCountsBlankLines: "T3",
    reading.SkipForgetsBadRecords: "T3",
    reading.TakesTheNextSharesLine: "T4",
    crashes.SplitFromItsBeginning: "T4",
    delivery.FirstWriterWins: "O1",
    delivery.UnsortedKeys: "O2",
    delivery.ForgetsWhatIsExtra: "O2",
    delivery.KeepsWhatIsRemoved: "O2",
    delivery.OnePositionForAllSplits: "O2",
    delivery.BeginsAgainSilently: "O2",
    delivery.CommitsAnything: "O3",
    delivery.CommitsBeforeAcknowledge: "D1",
    delivery.TrustsItsOwnNotes: "D1",
    delivery.TrustsItselfAfterARecovery: "D2",
    delivery.UnboundedQueue: "D3",
    delivery.StopWaitsForThePause: "D4",
    delivery.CommitsOnStop: "D4",
    delivery.FifthBatchElsewhere: "D5",
    crashes.SwallowsBadRecords: "D6",
    delivery.GivesUpEarly: "E1",
    delivery.TriesWhatCannotPass: "E1",
    delivery.SecretInTheMessage: "E2",
    delivery.NamesNoObject: "E2",
    delivery.SaysNotWhatToDo: "E2",
    delivery.LetsSomeThrough: "E2",
    delivery.NeedsTheOriginalProcess: "S1",
    delivery.HoldsALock: "S1",
    delivery.OnlyBehindTheLast: "H1",
    delivery.KnowsAKeyOnlyOnce: "H1",
}
"""Exhibit -> the law that it breaks."""

NO_LESS = {
    "T3": {"I1", "D1", "D2"},  # who skips wrongly resumes wrongly
    "L1": {"L3", "L4", "L5"},  # who lists too little does so everywhere
    "L2": {"L3", "L4"},  # going on behind a key is tried below a prefix, and behind difficult keys
    "D1": {"D2"},  # two crashes hold one
}
"""Law -> the laws that cannot hold where it is broken."""
