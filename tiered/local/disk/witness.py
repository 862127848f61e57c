"""What a log directory has seen of its bucket, from the checkpoint and the claims beside each other."""

from __future__ import annotations

from collections.abc import Mapping

from tiered.local.disk.claims import ClaimProof
from tiered.local.disk.uploads import PartitionUpload
from tiered.model import TopicPartition
from tiered.plan.known import Known
from tiered.plan.lifecycle import held_ids


def known_of(upload: PartitionUpload | None, proof: ClaimProof | None, *, made: bool = False) -> Known:
    """Of one partition. ``made``: what its registry entry says."""
    upload, proof = upload or PartitionUpload(0), proof or ClaimProof()
    version, restored_end = proof.restored_from or (0, 0)
    return Known(
        made=made,
        version=version,
        start_offset=max(upload.start_offset, 0),
        next_offset=max(upload.end_offset, restored_end),
        writer_epoch=max(upload.claim_epoch, 0),
        tokens=held_ids(proof.token or ""),
    )


def known_partitions(
    uploads: Mapping[TopicPartition, PartitionUpload], claims: Mapping[TopicPartition, ClaimProof]
) -> dict[TopicPartition, Known]:
    """Of every partition that one of the two names."""
    return {tp: known_of(uploads.get(tp), claims.get(tp)) for tp in {*uploads, *claims}}


def known_topic(
    topic: str, uploads: Mapping[TopicPartition, PartitionUpload], claims: Mapping[TopicPartition, ClaimProof]
) -> dict[int, Known]:
    """Of every partition of one topic that one of the two names, by number; the others cost a comparison each."""
    named = {tp for each in (uploads, claims) for tp in each if tp.topic == topic}
    return {tp.partition: known_of(uploads.get(tp), claims.get(tp)) for tp in named}
